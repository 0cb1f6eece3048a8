//! Resource types of Outrigger.

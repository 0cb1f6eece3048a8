//! Between the eras: what a client says in one and a server understands in the other.

pub mod capabilities;

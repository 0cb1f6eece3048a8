//! Between the eras: [`modern`] clients in front of servers that have a handshake, and [`legacy`] clients in front of
//! servers that have none.

pub mod capabilities;
pub mod legacy;
pub mod modern;

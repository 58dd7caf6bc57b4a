//! `ParameterServerStrategy` with servers that listen on loopback ports.

pub mod common;
mod normalized;
mod placed;
mod trained;

//! `ParameterServerStrategy` with servers that listen on loopback ports.

mod common;
mod normalized;
mod placed;
mod trained;

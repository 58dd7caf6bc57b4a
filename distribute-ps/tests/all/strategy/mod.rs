//! `ParameterServerStrategy` with servers that listen on loopback ports.

mod common;
mod placed;
mod trained;

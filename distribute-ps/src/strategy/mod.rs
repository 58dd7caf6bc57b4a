//! `ParameterServerStrategy`.

//! Tokens and certificates between coordinators, workers and parameter servers: right ones, wrong
//! ones and none.

mod certificates;
mod program;
mod refused;
mod relayed;
mod unauthenticated;

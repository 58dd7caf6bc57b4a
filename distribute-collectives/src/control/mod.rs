//! The control plane: ranks find each other, watch each other and tell each other what went wrong.

pub mod security;

//! Servers and clients over loopback, and as processes of their own.

mod common;
mod updates;

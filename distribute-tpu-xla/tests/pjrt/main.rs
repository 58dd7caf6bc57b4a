//! The safe layer over PJRT against real plugins and against false ones.

mod cpu;
mod support;

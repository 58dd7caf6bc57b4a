//! A safe layer over the PJRT C API.

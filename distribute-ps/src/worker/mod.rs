//! Workers: run the closures of the coordinator.

//! One binary that is coordinator, worker or server by its role.

//! The coordinator: schedules closures on workers and waits for them.

//! The `Debug` form of an error.

/// A cause that the message does not tell is told behind it.
#[test]
fn causes_are_told_once() {
    #[derive(Debug, thiserror::Error)]
    #[error("inner")]
    struct Inner;
    #[derive(thiserror::Error)]
    #[error("outer")]
    struct Outer(#[source] Inner);
    distribute_error::debug_as_message!(Outer);
    assert_eq!(format!("{:?}", Outer(Inner)), "outer: inner");
    assert_eq!(format!("{:#?}", Outer(Inner)), "outer\n  caused by: inner");
}

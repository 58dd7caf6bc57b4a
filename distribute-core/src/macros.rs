//! What types of this crate would otherwise write out in the same words.

/// Methods of a builder that each set one field, which may be inside of another: the documentation
/// and `name(argument: its type) => field = value;`. The value may be computed from `self`. For the
/// crates of this workspace.
#[doc(hidden)]
#[macro_export]
macro_rules! setters {
    ($self:ident; $(
        $(#[$meta:meta])*
        $name:ident($argument:ident: $type:ty) => $($field:ident).+ = $value:expr;
    )+) => {$(
        $(#[$meta])*
        pub fn $name(mut $self, $argument: $type) -> Self {
            $self.$($field).+ = $value;
            $self
        }
    )+};
}
pub(crate) use setters;

/// Methods that forward to another value, `of`, which is computed from `self`.
macro_rules! forward {
    ($self:ident => $of:expr; $(
        fn $name:ident($($argument:ident: $type:ty),*) -> $result:ty;
    )+) => {$(
        fn $name(&$self $(, $argument: $type)*) -> $result {
            $of.$name($($argument),*)
        }
    )+};
}
pub(crate) use forward;

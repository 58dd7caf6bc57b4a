//! The methods of builders that each set one field.

/// Writes such methods: the documentation of each and `name(argument: its type) => field = value;`.
macro_rules! setters {
    ($(
        $(#[$meta:meta])*
        $name:ident($argument:ident: $type:ty) => $($field:ident).+ = $value:expr;
    )+) => {$(
        $(#[$meta])*
        pub fn $name(mut self, $argument: $type) -> Self {
            self.$($field).+ = $value;
            self
        }
    )+};
}
pub(crate) use setters;

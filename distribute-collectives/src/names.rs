//! Enums whose values have names: each value and its name are written once.

/// Declares an enum with `ALL` (`all` is its visibility), `name` and `Display`.
macro_rules! named_enum {
    (
        all: $all:vis,
        $(#[$meta:meta])*
        pub enum $Enum:ident {
            $($(#[$of_value:meta])* $Value:ident $(= $code:literal)? => $name:literal,)+
        }
    ) => {
        $(#[$meta])*
        pub enum $Enum {
            $($(#[$of_value])* $Value $(= $code)?,)+
        }

        impl $Enum {
            /// All values, in the order of their declaration, which is that of their codes.
            $all const ALL: [Self; [$($name),+].len()] = [$(Self::$Value),+];

            /// The short name, as used in messages.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$Value => $name,)+
                }
            }
        }

        impl ::std::fmt::Display for $Enum {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                f.write_str(self.name())
            }
        }
    };
}
pub(crate) use named_enum;

//! What can be chosen by a name, as a command line or a checkpoint says it.

use std::str::FromStr;

/// Values with names, which are understood in capitals too.
macro_rules! names {
    ($(
        $(#[$meta:meta])*
        $type:ident { $($(#[$value_meta:meta])* $value:ident = $name:literal,)+ }
    )+) => {$(
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $type {
            $($(#[$value_meta])* $value,)+
        }

        impl $type {
            /// Its name.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$value => $name,)+
                }
            }
        }

        impl FromStr for $type {
            type Err = String;

            fn from_str(text: &str) -> Result<Self, String> {
                let all = [$(Self::$value),+];
                let known = all.into_iter().find(|it| it.name().eq_ignore_ascii_case(text));
                known.ok_or_else(|| distribute_error::unknown("name", text, [$($name),+]))
            }
        }
    )+};
}

names! {
    /// The divisor of values that are stored as bytes.
    ScaleName {
        /// Bytes by 255, unless the model rescales them itself; other types are not changed.
        Auto = "auto",
        /// Nothing.
        None = "none",
        /// 255, whatever their type.
        By255 = "255",
    }

    /// What the labels of the data are taken for.
    #[derive(Default)]
    TargetsName {
        /// What data, model and loss say.
        #[default]
        Auto = "auto",
        /// One class per example.
        Classes = "classes",
        /// As many values per example as the model has outputs.
        Values = "values",
    }

    /// Some of the examples of a data set.
    SplitName {
        /// The training examples.
        Train = "train",
        /// The test examples.
        Test = "test",
        /// Both.
        All = "all",
    }
}

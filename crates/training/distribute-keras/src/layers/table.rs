//! The code that the table of layers generates.

/// What to do about a function of one's own in a layer: the file has it as Python's bytecode.
pub(super) const LAMBDA: &str = "its function is Python's bytecode in the file; write it with \
                                 layers (Rescaling, Reshape, Softmax, ..) or operations on the \
                                 tensors (`x * 2`, `x[:, 0]`, `keras.ops`)";

/// Makes of the rows of the table: the layers with their options, the built layers, and what finds
/// one by its class.
macro_rules! layers {
    (@listed $($class:literal)+) => { concat!($(" ", $class, ","),+) };
    (@listed $($class:literal)+ as $listed:literal) => { concat!(" ", $listed) };
    ($(
        $class:literal $($more:literal)* $(or $($old:literal)|+)? $(as $listed:literal)?:
        $file:ident::$name:ident $(=> $($module:ident($weights:ty)),+)?;
    )+) => {
        $(
            #[doc(inline)]
            pub use $file::$name;
        )+

        /// One layer, with the options of the Keras class of the same name.
        #[derive(Debug, Clone, PartialEq)]
        #[non_exhaustive]
        pub enum LayerSpec {
            $(
                #[doc = concat!("See [`", stringify!($name), "`].")]
                $name($name),
            )+
        }

        $(
            impl From<$name> for LayerSpec {
                fn from(layer: $name) -> Self {
                    Self::$name(layer)
                }
            }
        )+

        impl LayerSpec {
            /// Reads a layer with its options, and whether it is trained.
            pub(crate) fn read(
                class: &str,
                mut fields: Fields<'_>,
            ) -> Result<(Self, bool), ModelError> {
                let trainable = common(&mut fields)?;
                let layer = match class {
                    $(
                        $class $(| $more)* $($(| $old)+)? => {
                            $name::parse(class, &mut fields)?.into()
                        }
                    )+
                    _ => {
                        let known = concat!(
                            "use",
                            $(layers!(@listed $class $($more)* $(as $listed)?)),+
                        );
                        let remedy = if class == "Lambda" { LAMBDA } else { known };
                        let what = "this layer".to_string();
                        return Err(fields.place().unsupported(what, None, remedy));
                    }
                };
                fields.finish()?;
                Ok((layer, trainable))
            }

            /// Keras' name of the class.
            pub fn class(&self) -> &'static str {
                match self {
                    $(Self::$name(layer) => layer.class().unwrap_or($class),)+
                }
            }

            pub(crate) fn layer(&self) -> &dyn KerasLayer {
                match self {
                    $(Self::$name(layer) => layer,)+
                }
            }

            pub(crate) fn layer_mut(&mut self) -> &mut dyn KerasLayer {
                match self {
                    $(Self::$name(layer) => layer,)+
                }
            }
        }

        /// One built layer. The names of the variants are part of the parameters' paths.
        #[derive(Module, Debug)]
        pub(crate) enum BuiltLayer {
            Plain(Plain),
            $($($($module($weights),)+)?)+
        }

        impl BuiltLayer {
            pub(crate) fn built(&self) -> &dyn Built {
                match self {
                    Self::Plain(layer) => layer,
                    $($($(Self::$module(layer) => layer,)+)?)+
                }
            }
        }
    };
}
pub(super) use layers;

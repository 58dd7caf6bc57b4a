//! The code that the table of layers generates.

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
                        let place = fields.place();
                        return Err(place.unsupported("this layer".to_string(), known));
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
        #[expect(
            clippy::large_enum_variant,
            reason = "a model has some hundred layers at most, and a box would be one more path \
                      to follow"
        )]
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

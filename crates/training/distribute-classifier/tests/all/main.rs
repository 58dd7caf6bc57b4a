//! Models with several inputs and outputs against real Keras.

mod outputs;

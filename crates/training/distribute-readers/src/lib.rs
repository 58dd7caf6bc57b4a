//! Reads data files into arrays in host memory: IDX, CSV, NumPy and folders of images; one data set
//! is built in.
//!
//! All readers give [`Examples`], plain arrays in host memory that are shared between threads and
//! read in batches by index; or, for single files, an [`Array`]. A file is recognised by its
//! contents, and IDX, CSV and `.npy` files may be gzip-compressed whatever their name is. The sizes
//! that a header claims are held against the size of the file, and against each other, before
//! anything is allocated, and no input makes a reader panic.

#![forbid(unsafe_code)]
#![deny(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    clippy::unwrap_used
)]

mod array;
mod csv_options;
mod decode;
mod digits;
mod error;
mod examples;
mod foreign;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
mod header;
mod idx;
mod image_folder;
mod label_column;
mod lines;
mod mnist;
mod npy;
mod npz;
mod npz_writer;
mod places;
mod source;
mod split;
pub mod streams;
mod table;
mod table_start;
mod text;

pub use array::{Array, Values};
pub use csv_options::{CsvColumns, CsvHeader, CsvLabels, CsvOptions, LabelColumn, LabelPlace};
pub use digits::{digits, digits_split};
pub use error::{Place, ReadError};
pub use examples::{Examples, Features, Labels, TrainTest};
pub use idx::{parse_idx, read_idx};
pub use image_folder::{ImageColor, read_image_folder, read_images};
pub use mnist::{read_mnist_folder, read_mnist_images};
pub use npy::{parse_npy, read_npy};
pub use npz::{parse_npz, parse_npz_arrays, read_npz, read_npz_arrays, read_npz_features};
pub use npz_writer::write_npz;
pub use split::permutation;
pub use table::{csv_names, parse_csv, read_csv};
pub use text::{
    TextOptions, parse_text_csv, parse_texts, read_text_csv, read_text_lines, read_texts,
};

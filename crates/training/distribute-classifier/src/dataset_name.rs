//! Datasets by name.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use distribute_readers::CsvHeader;

use crate::local_path::local_path;

/// A data set by its name, such as `digits` or `csv:FILE`; it is parsed from one, and displayed
/// as one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DatasetName {
    /// `digits`: 1,797 embedded images of digits.
    Digits,
    /// `mnist`, in [`ReadingOptions::data_dir`](crate::ReadingOptions) or `data/mnist`.
    Mnist,
    /// `fashion-mnist`, in [`ReadingOptions::data_dir`](crate::ReadingOptions) or
    /// `data/fashion-mnist`.
    FashionMnist,
    /// `images`, of [`ReadingOptions::data_dir`](crate::ReadingOptions).
    Images,
    /// `images:DIR`, of a folder, or one image.
    ImagesAt(PathBuf),
    /// `text:FILE`: lines of text without labels.
    Text(PathBuf),
    /// `idx:DIR`: four files as MNIST has them, or one file of images without labels.
    Idx(PathBuf),
    /// `csv:FILE`, and whether its first line names the columns.
    Csv(PathBuf, CsvHeader),
    /// `npz:FILE`: arrays of NumPy.
    Npz(PathBuf),
}

/// Datasets that are named without a path.
const NAMES: [&str; 4] = ["digits", "mnist", "fashion-mnist", "images"];

impl FromStr for DatasetName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let named = match &*text.to_lowercase() {
            "digits" => Some(Self::Digits),
            "mnist" => Some(Self::Mnist),
            "fashion-mnist" => Some(Self::FashionMnist),
            "images" => Some(Self::Images),
            _ => None,
        };
        let from_file = || {
            let (kind, path) = text.split_once(':')?;
            let path = PathBuf::from((!path.is_empty()).then_some(path)?);
            let file: fn(PathBuf) -> Self = match &*kind.to_lowercase() {
                "images" => Self::ImagesAt,
                "text" => Self::Text,
                "idx" => Self::Idx,
                "csv" => |path| Self::Csv(path, CsvHeader::Detect),
                "npz" => Self::Npz,
                _ => return None,
            };
            Some(local_path(path).map(file))
        };
        let named = named.map(Ok).or_else(from_file);
        // A URL without a kind before it.
        let named = named.or_else(|| local_path(PathBuf::from(text)).err().map(Err));
        named.unwrap_or_else(|| {
            let nearest = distribute_error::nearest(text, NAMES);
            let nearest = nearest.map_or_else(String::new, |it| format!("did you mean `{it}`? "));
            Err(format!(
                "{nearest}Use {}, images:DIR, idx:DIR, csv:FILE, npz:FILE or, to predict, \
                 text:FILE",
                NAMES.join(", ")
            ))
        })
    }
}

impl fmt::Display for DatasetName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Digits => f.write_str("digits"),
            Self::Mnist => f.write_str("mnist"),
            Self::FashionMnist => f.write_str("fashion-mnist"),
            Self::Images => f.write_str("images"),
            Self::ImagesAt(path) => write!(f, "images:{}", path.display()),
            Self::Text(path) => write!(f, "text:{}", path.display()),
            Self::Idx(path) => write!(f, "idx:{}", path.display()),
            Self::Csv(path, _) => write!(f, "csv:{}", path.display()),
            Self::Npz(path) => write!(f, "npz:{}", path.display()),
        }
    }
}

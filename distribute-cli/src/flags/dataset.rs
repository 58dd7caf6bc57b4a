//! Data sets by name.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use clap::ValueEnum;
use distribute_data::readers::{CsvHeader, ImageColor};

use super::path::local;

/// A data set, as on the command line and in checkpoints.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum DatasetName {
    Digits,
    Mnist,
    FashionMnist,
    Images,
    /// Of a folder, or one image.
    ImagesAt(PathBuf),
    /// Lines of text without labels.
    Text(PathBuf),
    Idx(PathBuf),
    Csv(PathBuf, CsvHeader),
    Npz(PathBuf),
}

/// Data sets without a file of their own.
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
            Some(local(path).map(file))
        };
        let named = named.map(Ok).or_else(from_file);
        // An address without a kind before it.
        let named = named.or_else(|| local(PathBuf::from(text)).err().map(Err));
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

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum CsvHeaderName {
    /// If none of its fields is a number; where that cannot decide it is an error
    Auto,
    Yes,
    No,
}

impl From<CsvHeaderName> for CsvHeader {
    fn from(name: CsvHeaderName) -> Self {
        match name {
            CsvHeaderName::Auto => Self::Detect,
            CsvHeaderName::Yes => Self::Present,
            CsvHeaderName::No => Self::Absent,
        }
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

/// What the values of examples that are stored as bytes are divided by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ScaleName {
    /// Bytes by 255, unless the model rescales them itself; other types are taken as they are
    Auto,
    None,
    #[value(name = "255")]
    By255,
}

/// A value as it stands on the command line.
pub(crate) fn named(value: impl ValueEnum) -> Option<String> {
    let value = value.to_possible_value()?;
    Some(value.get_name().to_string())
}

/// What images become; Keras' `color_mode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ColorName {
    AsStored,
    Grayscale,
    Rgb,
}

impl From<ColorName> for ImageColor {
    fn from(name: ColorName) -> Self {
        match name {
            ColorName::AsStored => Self::AsStored,
            ColorName::Grayscale => Self::Grayscale,
            ColorName::Rgb => Self::Rgb,
        }
    }
}

/// The byte between two fields of a table.
pub(super) fn delimiter(text: &str) -> Result<char, String> {
    match (text, text.as_bytes()) {
        ("tab" | "\\t", _) => Ok('\t'),
        (_, [byte]) if byte.is_ascii() && !matches!(byte, b'"' | b'\n' | b'\r' | b'.') => {
            Ok(char::from(*byte))
        }
        _ => Err("one character such as ; or | is needed, or `tab`".to_string()),
    }
}

/// What the outputs of the model are compared with the classes by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LossName {
    /// Between the outputs and the class, or as many yes-no questions behind a sigmoid
    CrossEntropy,
    /// The mean of the squares of the differences to the class as zeros and a one
    Mse,
    /// The mean of the differences without their signs
    Mae,
}

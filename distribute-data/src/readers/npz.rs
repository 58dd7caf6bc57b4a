//! NumPy's `.npz`: a zip archive of `.npy` files.

use std::io::{BufReader, Cursor, Read, Seek};
use std::path::{Path, PathBuf};

use zip::ZipArchive;
use zip::result::ZipError;

use super::array::Array;
use super::error::ReadError;
use super::examples::{Examples, Features, Labels, TrainTest};
use super::mnist::class_labels;
use super::npy;
use super::source::{Source, open_regular, stream_error};

const WANTED: &str = "x_train and y_train (with x_test and y_test, or without), or x and y";

/// Reads a `.npz` file with the keys `x_train`, `y_train` and, if there is a test set, `x_test`
/// and `y_test` (the layout of Keras' data sets); or with the keys `x` and `y`.
///
/// The first axis counts the examples. Bytes are pixels, read as `x as f32 / 255.0`; all other
/// features are taken as they are. Integer labels of shape `[n]` or `[n, 1]` are classes, all
/// others values. Both sets get the same number of classes: the largest label plus one.
///
/// # Errors
/// [`ReadError::MissingName`] with the keys that are there, [`ReadError::CountMismatch`],
/// [`ReadError::LabelOutOfRange`], [`ReadError::NotFinite`], [`ReadError::Malformed`] for a damaged
/// archive, and those of [`read_npy`](super::read_npy) for its members.
pub fn read_npz(path: impl AsRef<Path>) -> Result<(Examples, Option<Examples>), ReadError> {
    let path = path.as_ref();
    let (file, length) = open_regular(path)?;
    parse(BufReader::with_capacity(1 << 16, file), length, path)
}

/// Reads `.npz` from memory; `origin` names the data in errors.
///
/// # Errors
/// As [`read_npz`].
pub fn parse_npz(
    bytes: &[u8],
    origin: impl AsRef<Path>,
) -> Result<(Examples, Option<Examples>), ReadError> {
    parse(Cursor::new(bytes), bytes.len() as u64, origin.as_ref())
}

/// An open archive, its path, and its length: what no member can exceed.
struct Npz<'a, R> {
    archive: ZipArchive<R>,
    path: &'a Path,
    length: u64,
}

fn parse(
    reader: impl Read + Seek,
    length: u64,
    path: &Path,
) -> Result<(Examples, Option<Examples>), ReadError> {
    let archive = ZipArchive::new(reader).map_err(|error| zip_error(path, error))?;
    let name = path
        .file_stem()
        .map_or("npz".into(), |name| name.to_string_lossy().into_owned());
    let mut npz = Npz {
        archive,
        path,
        length,
    };
    let [x, y] = if npz.has("x_train") {
        ["x_train", "y_train"]
    } else {
        ["x", "y"]
    };
    let has_test = x == "x_train" && (npz.has("x_test") || npz.has("y_test"));
    let mut keys = vec![x, y];
    if has_test {
        keys.extend(["x_test", "y_test"]);
    }
    if !keys.iter().all(|key| npz.has(key)) {
        let found = npz.keys();
        return Err(ReadError::MissingName {
            path: path.into(),
            wanted: WANTED.into(),
            found,
        });
    }
    let train = npz.examples(&format!("{name} train"), [x, y])?;
    if !has_test {
        return Ok((train, None));
    }
    let test = npz.examples(&format!("{name} test"), ["x_test", "y_test"])?;
    let both = TrainTest { train, test }.with_common_classes()?;
    Ok((both.train, Some(both.test)))
}

impl<R: Read + Seek> Npz<'_, R> {
    fn has(&self, key: &str) -> bool {
        self.archive.index_for_name(&member(key)).is_some()
    }

    fn keys(&self) -> Vec<String> {
        let names = self.archive.file_names_raw().map(String::from_utf8_lossy);
        names
            .map(|name| name.trim_end_matches(".npy").to_owned())
            .collect()
    }

    fn examples(&mut self, name: &str, [x, y]: [&str; 2]) -> Result<Examples, ReadError> {
        let (features, features_path) = self.array(x)?;
        let (labels, labels_path) = self.array(y)?;
        for (array, path) in [(&features, &features_path), (&labels, &labels_path)] {
            if array.shape().is_empty() {
                let what = "is a single number, not an array of examples";
                return Err(ReadError::malformed(path, what));
            }
        }
        let is_class = labels.values().is_integer() && matches!(labels.shape(), [_] | [_, 1]);
        let labels = match is_class {
            true => class_labels(labels, &labels_path)?,
            false => Labels::Numbers(labels),
        };
        let features = Features::Numbers(features);
        let examples = Examples::from_files(
            name,
            (features, &features_path),
            (labels, &labels_path),
            &[],
        )?;
        Ok(examples.with_files(&[self.path.into()]))
    }

    /// The array of one key, and how errors name it: `data.npz[x_train]`.
    fn array(&mut self, key: &str) -> Result<(Array, PathBuf), ReadError> {
        let path = PathBuf::from(format!("{}[{key}]", self.path.display()));
        let file = self
            .archive
            .by_name(&member(key))
            .map_err(|error| zip_error(&path, error))?;
        // The archive may claim anything; there cannot be more compressed bytes than the file has.
        let compressed_bytes = file.compressed_size().min(self.length);
        let source = Source::compressed(Box::new(file), compressed_bytes, &path);
        let array = npy::parse_source(source)?;
        Ok((array, path))
    }
}

fn member(key: &str) -> String {
    format!("{key}.npy")
}

fn zip_error(path: &Path, error: ZipError) -> ReadError {
    match error {
        ZipError::Io(error) => stream_error(path, error),
        ZipError::UnsupportedArchive(what) => ReadError::Unsupported {
            path: path.into(),
            what: format!("is a zip archive that is not read here: {what}"),
            remedy: "write it with numpy.savez or numpy.savez_compressed",
        },
        error => ReadError::malformed(path, format!("not a readable .npz archive: {error}")),
    }
}

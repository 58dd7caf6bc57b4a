//! Folders in the layout of MNIST: four IDX files.

use std::path::{Path, PathBuf};

use crate::array::{Array, Values, with_values};
use crate::error::{Place, ReadError};
use crate::examples::{Examples, Features, Labels, TrainTest};
use crate::idx::{IdxKind, Opened};
use crate::source::require_directory;

/// Reads a folder with the four files of MNIST, Fashion-MNIST and their kin:
/// `train-images-idx3-ubyte`, `train-labels-idx1-ubyte`, `t10k-images-idx3-ubyte` and
/// `t10k-labels-idx1-ubyte`, each with or without `.gz`, and with `.idx` in place of `-idx`.
///
/// Pixels are read as `x as f32 / 255.0`, with the feature shape `[28, 28]` for MNIST. `classes`
/// (10 for MNIST) is what the labels are checked against; `None` takes the largest label plus one.
///
/// # Errors
/// [`ReadError::Missing`] with the names looked for, [`ReadError::CountMismatch`],
/// [`ReadError::LabelOutOfRange`], [`ReadError::WrongMagic`] also for labels in place of images,
/// and the errors of [`read_idx`](crate::read_idx).
pub fn read_mnist_folder(
    folder: impl AsRef<Path>,
    classes: Option<usize>,
) -> Result<TrainTest, ReadError> {
    let folder = folder.as_ref();
    require_directory(folder)?;
    let name = folder
        .file_name()
        .map_or("idx".into(), |name| name.to_string_lossy());
    // All four are looked for before the first one, which may be large, is read.
    let train = find_pair(folder, "train")?;
    let test = find_pair(folder, "t10k")?;
    // And all counts and shapes are compared before the values of one are read.
    let (train, test) = (open_pair(&train)?, open_pair(&test)?);
    same_shape(&train[0], &test[0])?;
    let read = |split, [pixels, classes_of]: [Opened<'_>; 2]| {
        let (images, labels) = (pixels.path(), classes_of.path());
        let features = Features::Numbers(pixels.read()?);
        let classes_read = class_labels(classes_of.read()?, labels)?;
        let name = format!("{name} {split}");
        let examples = Examples::from_files(&name, features, images, classes_read, labels, &[])?;
        match classes {
            Some(classes) => examples.with_classes(classes),
            None => Ok(examples),
        }
    };
    let (train, test) = (read("train", train)?, read("test", test)?);
    TrainTest { train, test }.with_common_classes()
}

/// Reads the images of such a folder whose labels are not there, to predict them: of the training
/// images, then of the test images. Images that have labels are left out.
///
/// # Errors
/// [`ReadError::Missing`] if no images are without labels, [`ReadError::ShapesDiffer`] also for
/// other types of values, [`ReadError::WrongMagic`], and the errors of
/// [`read_idx`](crate::read_idx).
pub fn read_mnist_images(folder: impl AsRef<Path>) -> Result<Examples, ReadError> {
    let folder = folder.as_ref();
    require_directory(folder)?;
    let without_labels = |split: &&str| find_labels(folder, split).is_err();
    let splits = ["train", "t10k"].into_iter().filter(without_labels);
    let paths: Vec<PathBuf> = splits
        .flat_map(|split| find_images(folder, split))
        .collect();
    let mut images: Option<Array> = None;
    for path in &paths {
        let read = Opened::open(path, IdxKind::Images)?.read()?;
        images = Some(match images {
            None => read,
            Some(before) => {
                let shapes = [before.row_shape(), read.row_shape()].map(<[usize]>::to_vec);
                before.followed_by(read).ok_or_else(|| {
                    let [shape, other] = shapes;
                    ReadError::ShapesDiffer {
                        path: paths[0].clone(),
                        shape,
                        other_path: path.clone(),
                        other,
                    }
                })?
            }
        });
    }
    let (Some(images), Some(path)) = (images, paths.first()) else {
        let looked_for = ["train", "t10k"].map(|split| format!("{split}-images-idx3-ubyte"));
        return Err(ReadError::Missing {
            path: folder.into(),
            looked_for: looked_for.into(),
        });
    };
    if images.rows() == 0 {
        return Err(ReadError::empty(path));
    }
    let labels = Labels::Absent(images.rows());
    let name = folder
        .file_name()
        .map_or("idx".into(), |name| name.to_string_lossy());
    Examples::new(&name, Features::Numbers(images), labels)
}

/// The files of images and of labels.
type Pair = (PathBuf, PathBuf);

/// Both files up to their values, of which there must be as many.
fn open_pair((images, labels): &Pair) -> Result<[Opened<'_>; 2], ReadError> {
    let pixels = Opened::open(images, IdxKind::Images)?;
    let classes = Opened::open(labels, IdxKind::Labels)?;
    let rows = |opened: &Opened<'_>| opened.shape().first().copied().unwrap_or(1);
    let examples = rows(&pixels);
    same_count(images, examples, labels, rows(&classes))?;
    if examples == 0 {
        return Err(ReadError::empty(images));
    }
    Ok([pixels, classes])
}

/// Refuses training and test images of different sizes.
fn same_shape(train: &Opened<'_>, test: &Opened<'_>) -> Result<(), ReadError> {
    let of_one = |images: &Opened<'_>| images.shape().get(1..).unwrap_or_default().to_vec();
    let (shape, other) = (of_one(train), of_one(test));
    if shape == other {
        return Ok(());
    }
    Err(ReadError::ShapesDiffer {
        path: train.path().into(),
        shape,
        other_path: test.path().into(),
        other,
    })
}

/// Refuses another number of labels than of examples.
pub(crate) fn same_count(
    features_path: &Path,
    examples: usize,
    labels_path: &Path,
    labels: usize,
) -> Result<(), ReadError> {
    if examples == labels {
        return Ok(());
    }
    Err(ReadError::CountMismatch {
        features_path: features_path.into(),
        examples,
        labels_path: labels_path.into(),
        labels,
    })
}

fn find_pair(folder: &Path, split: &str) -> Result<Pair, ReadError> {
    Ok((find_images(folder, split)?, find_labels(folder, split)?))
}

fn find_images(folder: &Path, split: &str) -> Result<PathBuf, ReadError> {
    find(folder, &format!("{split}-images"), "idx3-ubyte")
}

fn find_labels(folder: &Path, split: &str) -> Result<PathBuf, ReadError> {
    find(folder, &format!("{split}-labels"), "idx1-ubyte")
}

fn find(folder: &Path, what: &str, kind: &str) -> Result<PathBuf, ReadError> {
    let names = ["-", "."].map(|dash| format!("{what}{dash}{kind}"));
    let looked_for: Vec<String> = names
        .into_iter()
        .flat_map(|name| [format!("{name}.gz"), name])
        .collect();
    match looked_for
        .iter()
        .map(|name| folder.join(name))
        .find(|path| path.is_file())
    {
        Some(path) => Ok(path),
        None => Err(ReadError::Missing {
            path: folder.into(),
            looked_for,
        }),
    }
}

/// Labels of one integer per example, from an array of shape `[n]` or `[n, 1]`.
pub(crate) fn class_labels(array: Array, path: &Path) -> Result<Labels, ReadError> {
    if !matches!(array.shape(), [_] | [_, 1]) {
        let what = format!("labels have the shape {:?}", array.shape());
        let remedy = "pass one label per example";
        return Err(ReadError::Unsupported {
            path: path.into(),
            what,
            remedy,
        });
    }
    let (_, values) = array.into_parts();
    let as_integer = |(row, value): (usize, f64)| {
        // Only floating-point numbers that are integers pass: 3.0, not 3.5.
        if value.fract() == 0.0 && value.abs() <= i32::MAX.into() {
            return Ok(value as i64);
        }
        Err(ReadError::LabelOutOfRange {
            path: path.into(),
            place: Place::Row(row),
            value: value.to_string(),
            allowed: "a whole number from 0 on".into(),
        })
    };
    let labels = match values {
        Values::I64(labels) => labels,
        Values::F32(v) => v
            .iter()
            .map(|&x| x.into())
            .enumerate()
            .map(as_integer)
            .collect::<Result<_, _>>()?,
        Values::F64(v) => v
            .into_iter()
            .enumerate()
            .map(as_integer)
            .collect::<Result<_, _>>()?,
        integers => with_values!(integers, v => v.into_iter().map(|x| x as i64).collect()),
    };
    Ok(Labels::Classes(labels))
}

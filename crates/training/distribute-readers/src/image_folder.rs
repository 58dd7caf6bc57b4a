//! Folders of PNG and JPEG images: one subfolder per class.

use std::fs;
use std::io::BufReader;
use std::path::{Path, PathBuf};

use image::metadata::Orientation;
use image::{DynamicImage, ImageDecoder, ImageFormat, ImageReader};

use crate::array::{Array, Values};
use crate::error::ReadError;
use crate::examples::{Examples, Features, Labels};
use crate::foreign::{START_BYTES, known};
use crate::source::{MAX_BYTES, Source, dangling_link, open_regular, require_directory};

/// No side of an image may be longer; a header that claims more is taken for damaged.
const MAX_SIDE_PIXELS: u32 = 1 << 14;
/// No decoder may allocate more for one image.
const MAX_IMAGE_BYTES: u64 = 512 << 20;
/// Neither PNG's deflate nor the shortest block of JPEG expands bytes more than 1,032 times; and
/// one bit of a palette becomes up to three bytes.
const MAX_RATIO: u64 = 24 * 1032;
/// Smaller images are not held against the size of their file.
const SMALL_BYTES: u64 = 1 << 20;
const EXTENSIONS: [&str; 3] = ["png", "jpg", "jpeg"];

/// The content of a folder of images.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum ImageColor {
    /// Grey if the first image is, else colour; an image of the other kind is an error.
    #[default]
    AsStored,
    /// Every image becomes grey: feature shape `[height, width]`.
    Grayscale,
    /// Every image becomes colour: feature shape `[height, width, 3]`.
    Rgb,
}

/// Reads a folder with one subfolder per class that holds its PNG and JPEG images.
///
/// Subfolders are sorted by name and numbered from 0: these are the labels, the names are
/// [`Examples::class_names`]. Images are sorted by name within their class. All must have the same
/// size as they are shown: what a camera noted of their orientation (EXIF) is applied. Pixels
/// become 8-bit, transparency is dropped, and values are read as `x as f32 / 255.0`.
/// Names that begin with a dot, and files beside the subfolders, are ignored.
///
/// # Errors
/// [`ReadError::Missing`] without subfolders, [`ReadError::Empty`] for a class without images,
/// [`ReadError::Unsupported`] for a file that is neither PNG nor JPEG, [`ReadError::BadImage`] and
/// [`ReadError::ImageMismatch`], each naming the file.
pub fn read_image_folder(
    folder: impl AsRef<Path>,
    color: ImageColor,
) -> Result<Examples, ReadError> {
    let folder = folder.as_ref();
    require_directory(folder)?;
    let mut classes = visible_entries(folder)?;
    if let Some(error) = classes.iter().find_map(|path| dangling_link(path)) {
        return Err(error);
    }
    let images_beside = classes
        .iter()
        .any(|path| path.is_file() && has_extension(path));
    classes.retain(|path| path.is_dir());
    if classes.is_empty() && images_beside {
        return Err(ReadError::Unsupported {
            path: folder.into(),
            what: "holds images and no folders, so nothing says their classes".into(),
            remedy: "put them into one folder per class; to predict, no classes are needed",
        });
    }
    if classes.is_empty() {
        let looked_for = vec!["subfolder (one per class, with its PNG or JPEG images)".to_owned()];
        return Err(ReadError::Missing {
            path: folder.into(),
            looked_for,
        });
    }
    let mut images = Vec::new();
    for (label, class) in classes.iter().enumerate() {
        let of_class = visible_entries(class)?;
        if of_class.is_empty() {
            return Err(ReadError::empty(class));
        }
        images.extend(of_class.into_iter().map(|path| (path, label as i64)));
    }
    let class_names: Vec<String> = classes.iter().map(|class| file_name(class)).collect();
    let examples = stacked(&images, color, folder)?.into_examples(folder, &class_names)?;
    examples.with_classes(class_names.len())
}

/// Reads PNG and JPEG images without labels, as [`read_image_folder`] reads them: one image, the
/// images of a folder, or of its subfolders if it has no others; sorted by name. Other files, and
/// names that begin with a dot, are ignored.
///
/// The names of the images, as they stand in the folder, are [`Examples::class_names`]: example `i`
/// is of the image `i`.
///
/// # Errors
/// [`ReadError::Missing`] without an image, and the errors of [`read_image_folder`].
pub fn read_images(path: impl AsRef<Path>, color: ImageColor) -> Result<Examples, ReadError> {
    let path = path.as_ref();
    let folder = path.is_dir();
    let images = if folder {
        images_below(path)?
    } else {
        vec![path.to_owned()]
    };
    if images.is_empty() {
        return Err(ReadError::Missing {
            path: path.into(),
            looked_for: vec!["PNG or JPEG image".to_owned()],
        });
    }
    let names: Vec<String> = images
        .iter()
        .map(|image| {
            image
                .strip_prefix(path)
                .ok()
                .filter(|_| folder)
                .unwrap_or(image)
        })
        .map(|name| name.display().to_string())
        .collect();
    let images: Vec<(PathBuf, i64)> = images.into_iter().map(|image| (image, 0)).collect();
    let examples = stacked(&images, color, path)?.into_examples(path, &names)?;
    Ok(examples.without_labels())
}

/// The images of a folder, or of its subfolders if it has none itself.
fn images_below(folder: &Path) -> Result<Vec<PathBuf>, ReadError> {
    let is_image = |path: &PathBuf| has_extension(path) && !path.is_dir();
    let entries = visible_entries(folder)?;
    let own: Vec<PathBuf> = entries.iter().filter(|it| is_image(it)).cloned().collect();
    if !own.is_empty() {
        return Ok(own);
    }
    let mut all = Vec::new();
    for below in entries.iter().filter(|path| path.is_dir()) {
        all.extend(visible_entries(below)?.into_iter().filter(is_image));
    }
    Ok(all)
}

/// The pixels of these images, all headers of which are compared before one is decoded.
fn stacked(
    images: &[(PathBuf, i64)],
    color: ImageColor,
    folder: &Path,
) -> Result<Stack, ReadError> {
    let mut stack = Stack {
        color,
        kind: None,
        pixels: Vec::new(),
        labels: Vec::new(),
    };
    for (path, _) in images {
        stack.compare(path)?;
    }
    stack.reserve(images.len(), folder)?;
    for (path, label) in images {
        stack.push(path, *label)?;
    }
    Ok(stack)
}

/// The entries of a directory whose names do not begin with a dot, sorted by name.
fn visible_entries(folder: &Path) -> Result<Vec<PathBuf>, ReadError> {
    let io = |error| ReadError::io(folder, error);
    let entries = fs::read_dir(folder)
        .map_err(io)?
        .map(|entry| entry.map(|entry| entry.path()));
    let mut paths = entries.collect::<Result<Vec<_>, _>>().map_err(io)?;
    paths.retain(|path| !file_name(path).starts_with('.'));
    paths.sort();
    Ok(paths)
}

fn file_name(path: &Path) -> String {
    path.file_name()
        .map_or_else(String::new, |name| name.to_string_lossy().into_owned())
}

/// What all images have in common, taken from the first one.
struct Kind {
    first: PathBuf,
    width: u32,
    height: u32,
    is_color: bool,
}

/// The images read so far.
struct Stack {
    color: ImageColor,
    kind: Option<Kind>,
    pixels: Vec<u8>,
    labels: Vec<i64>,
}

impl Stack {
    /// Reads the header of an image, which must be like the first one: the decoder, how the image
    /// is turned, and whether it becomes colour.
    fn compare(
        &mut self,
        path: &Path,
    ) -> Result<(impl ImageDecoder + use<>, Orientation, bool), ReadError> {
        let mut decoder = open(path)?;
        // What cannot be understood of it turns nothing.
        let orientation = decoder.orientation().unwrap_or(Orientation::NoTransforms);
        let (width, height) = if lies_on_its_side(orientation) {
            let (width, height) = decoder.dimensions();
            (height, width)
        } else {
            decoder.dimensions()
        };
        let is_color = match self.color {
            ImageColor::AsStored => decoder.color_type().has_color(),
            ImageColor::Grayscale => false,
            ImageColor::Rgb => true,
        };
        let kind = Kind {
            first: path.into(),
            width,
            height,
            is_color,
        };
        self.kind
            .get_or_insert(kind)
            .check(path, width, height, is_color)?;
        Ok((decoder, orientation, is_color))
    }

    /// Memory for the pixels of this many images.
    fn reserve(&mut self, images: usize, folder: &Path) -> Result<(), ReadError> {
        let Some(kind) = &self.kind else {
            return Ok(());
        };
        let pixels = u64::from(kind.width) * u64::from(kind.height);
        let channels = if kind.is_color { 3 } else { 1 };
        let claimed_bytes = (pixels * channels).saturating_mul(images as u64);
        let path = folder.into();
        if claimed_bytes > MAX_BYTES {
            let limit_bytes = MAX_BYTES;
            return Err(ReadError::TooLarge {
                path,
                claimed_bytes,
                limit_bytes,
            });
        }
        let bytes = claimed_bytes;
        let reserved = self.pixels.try_reserve_exact(bytes as usize);
        reserved.map_err(|_| ReadError::OutOfMemory { path, bytes })
    }

    fn push(&mut self, path: &Path, label: i64) -> Result<(), ReadError> {
        let (decoder, orientation, is_color) = self.compare(path)?;
        let image = DynamicImage::from_decoder(decoder);
        let mut image = image.map_err(|error| bad_image(path, error))?;
        image.apply_orientation(orientation);
        let pixels = if is_color {
            image.into_rgb8().into_raw()
        } else {
            image.into_luma8().into_raw()
        };
        self.pixels.extend_from_slice(&pixels);
        self.labels.push(label);
        Ok(())
    }

    fn into_examples(self, folder: &Path, class_names: &[String]) -> Result<Examples, ReadError> {
        let Some(kind) = self.kind else {
            return Err(ReadError::empty(folder));
        };
        let mut shape = vec![self.labels.len(), kind.height as usize, kind.width as usize];
        shape.extend(kind.is_color.then_some(3));
        let features = Features::Numbers(Array::new(shape, Values::U8(self.pixels))?);
        let labels = Labels::Classes(self.labels);
        let name = file_name(folder);
        Examples::from_files(&name, features, folder, labels, folder, class_names)
    }
}

impl Kind {
    fn check(&self, path: &Path, width: u32, height: u32, is_color: bool) -> Result<(), ReadError> {
        let color = |is_color| if is_color { "colour" } else { "grey" }.to_owned();
        let (expected, found, remedy) = if (width, height) != (self.width, self.height) {
            let expected = format!("{} x {} pixels", self.width, self.height);
            let found = format!("{width} x {height} pixels");
            (expected, found, "bring all images to one size")
        } else if is_color != self.is_color {
            let remedy = "have all of them converted: --color-mode grayscale or --color-mode rgb \
                          (`ImageColor`)";
            (color(self.is_color), color(is_color), remedy)
        } else {
            return Ok(());
        };
        let (path, first) = (path.into(), self.first.clone());
        Err(ReadError::ImageMismatch {
            path,
            found,
            first,
            expected,
            remedy,
        })
    }
}

/// Reads the header of a PNG or JPEG file: which of the two it is, its contents say.
fn open(path: &Path) -> Result<impl ImageDecoder + use<>, ReadError> {
    if path.is_dir() {
        return Err(ReadError::Unsupported {
            path: path.into(),
            what: "is a folder inside of a class folder".into(),
            remedy: "put the images of a class into its folder, not deeper; if the classes are \
                     the folders below, name the folder above them",
        });
    }
    if !has_extension(path) {
        return Err(ReadError::Unsupported {
            path: path.into(),
            what: "is not a PNG or JPEG image".into(),
            remedy: "convert it, or move it out of the folder",
        });
    }
    let (file, length) = open_regular(path)?;
    let reader = ImageReader::new(BufReader::new(file)).with_guessed_format();
    let mut reader = reader.map_err(|error| ReadError::io(path, error))?;
    if !matches!(reader.format(), Some(ImageFormat::Png | ImageFormat::Jpeg)) {
        let start = Source::open(path)?.head(START_BYTES)?;
        let why = match known(&start) {
            Some(what) => format!("it is {what}"),
            None => "it does not start as PNG or JPEG files do".to_owned(),
        };
        return Err(bad_image(path, why));
    }
    let mut limits = image::Limits::default();
    limits.max_image_width = Some(MAX_SIDE_PIXELS);
    limits.max_image_height = Some(MAX_SIDE_PIXELS);
    limits.max_alloc = Some(MAX_IMAGE_BYTES);
    reader.limits(limits);
    let decoder = reader
        .into_decoder()
        .map_err(|error| bad_image(path, error))?;
    let claimed_bytes = decoder.total_bytes();
    let limit_bytes = length.saturating_mul(MAX_RATIO);
    if claimed_bytes > limit_bytes.max(SMALL_BYTES) {
        return Err(ReadError::TooLarge {
            path: path.into(),
            claimed_bytes,
            limit_bytes,
        });
    }
    Ok(decoder)
}

/// Whether the name is of a PNG or JPEG image.
fn has_extension(path: &Path) -> bool {
    let extension = path
        .extension()
        .map(|extension| extension.to_string_lossy().to_ascii_lowercase());
    extension.is_some_and(|extension| EXTENSIONS.contains(&&*extension))
}

/// Whether an image is shown with its width as its height.
fn lies_on_its_side(orientation: Orientation) -> bool {
    matches!(
        orientation,
        Orientation::Rotate90
            | Orientation::Rotate270
            | Orientation::Rotate90FlipH
            | Orientation::Rotate270FlipH
    )
}

fn bad_image(path: &Path, why: impl ToString) -> ReadError {
    ReadError::BadImage {
        path: path.into(),
        why: why.to_string(),
    }
}

//! Writers of the small files that the tests of the readers read.

use std::fs;
use std::io::{Cursor, Write};
use std::path::Path;

use flate2::Compression;
use flate2::write::GzEncoder;
use image::{DynamicImage, ImageFormat};
use zip::write::{SimpleFileOptions, ZipWriter};

/// IDX: `code` is the type, `values` are big endian.
pub fn idx(code: u8, extents: &[u32], values: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0, 0, code, extents.len() as u8];
    bytes.extend(extents.iter().flat_map(|extent| extent.to_be_bytes()));
    bytes.extend_from_slice(values);
    bytes
}

pub fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// `.npy` version 1 with the header text padded as NumPy pads it.
pub fn npy(descr: &str, fortran_order: bool, shape: &str, values: &[u8]) -> Vec<u8> {
    let order = if fortran_order { "True" } else { "False" };
    let text = format!("{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}");
    npy_text(&text, values)
}

pub fn npy_text(text: &str, values: &[u8]) -> Vec<u8> {
    let mut text = text.to_owned();
    while !(10 + text.len() + 1).is_multiple_of(64) {
        text.push(' ');
    }
    text.push('\n');
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((text.len() as u16).to_le_bytes());
    bytes.extend(text.as_bytes());
    bytes.extend_from_slice(values);
    bytes
}

/// A zip archive; deflated as `numpy.savez_compressed` does, or stored as `numpy.savez`.
pub fn npz(members: &[(&str, Vec<u8>)], deflated: bool) -> Vec<u8> {
    let method = if deflated {
        zip::CompressionMethod::Deflated
    } else {
        zip::CompressionMethod::Stored
    };
    let mut writer = ZipWriter::new(Cursor::new(Vec::new()));
    for (name, bytes) in members {
        let options = SimpleFileOptions::default().compression_method(method);
        writer.start_file(format!("{name}.npy"), options).unwrap();
        writer.write_all(bytes).unwrap();
    }
    writer.finish().unwrap().into_inner()
}

pub fn u8_images(count: usize, side: usize) -> Vec<u8> {
    (0..count * side * side)
        .map(|at| (at * 7 % 256) as u8)
        .collect()
}

/// The four files of an MNIST folder: 5 training and 3 test images of 4 x 4 pixels.
pub fn write_mnist(folder: &Path, compressed: bool) {
    let images = |n: usize| idx(8, &[n as u32, 4, 4], &u8_images(n, 4));
    let labels = |labels: &[u8]| idx(8, &[labels.len() as u32], labels);
    for (name, bytes) in [
        ("train-images-idx3-ubyte", images(5)),
        ("train-labels-idx1-ubyte", labels(&[0, 1, 2, 1, 0])),
        ("t10k-images-idx3-ubyte", images(3)),
        ("t10k-labels-idx1-ubyte", labels(&[2, 3, 0])),
    ] {
        if compressed {
            fs::write(folder.join(format!("{name}.gz")), gzip(&bytes)).unwrap()
        } else {
            fs::write(folder.join(name), bytes).unwrap()
        }
    }
}

pub fn encode(image: &DynamicImage, format: ImageFormat) -> Vec<u8> {
    let mut bytes = Cursor::new(Vec::new());
    image.write_to(&mut bytes, format).unwrap();
    bytes.into_inner()
}

/// A grey image whose pixels are `start`, `start + 1` and so on.
pub fn gray(width: u32, height: u32, start: u8) -> DynamicImage {
    let pixel = |x, y| image::Luma([start.wrapping_add((y * width + x) as u8)]);
    image::ImageBuffer::from_fn(width, height, pixel).into()
}

/// A colour image of one colour.
pub fn plain_color(width: u32, height: u32, color: [u8; 3]) -> DynamicImage {
    image::RgbImage::from_pixel(width, height, image::Rgb(color)).into()
}

pub fn write(folder: &Path, name: &str, bytes: &[u8]) {
    let path = folder.join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, bytes).unwrap();
}

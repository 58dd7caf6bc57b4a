//! NumPy's `.npy`: a magic, a version, a header that is a Python dictionary, the values
//! (<https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html>).
//!
//! The header is parsed here and not by a crate. npyz 0.9 takes as much memory as a header says it
//! is long (up to 4 GiB) before it reads it, and the whole Python literal grammar, as ndarray-npy
//! does, through a parser whose build compiles assembly; its `.npz` brings a second version of zip.
//! The checks of sizes and the texts of errors would stay here all the same.

use std::path::Path;

use crate::array::{Array, Values, checked_product};
use crate::decode::{Endian, Stored};
use crate::error::{ReadError, excerpt};
use crate::source::Source;

const MAGIC: &[u8] = b"\x93NUMPY";
const FORMAT: &str = "NumPy .npy (93 4e 55 4d 50 59)";
/// NumPy itself writes at most some hundred bytes, and reads at most 10,000.
const MAX_HEADER_BYTES: usize = 1 << 16;
/// NumPy allows 64 axes.
const MAX_RANK: usize = 64;

/// Reads a `.npy` file of booleans, integers or floating-point numbers in either byte order, row
/// or column major.
///
/// # Errors
/// [`ReadError`]: missing file, wrong magic, malformed header, truncated, data after the end, a
/// header that promises more than the file can hold, or a type that is not a plain number (objects
/// are pickles and never read).
pub fn read_npy(path: impl AsRef<Path>) -> Result<Array, ReadError> {
    Opened::new(Source::open(path.as_ref())?)?.read()
}

/// Reads `.npy` from memory; `origin` names the data in errors.
///
/// # Errors
/// As [`read_npy`].
pub fn parse_npy(bytes: &[u8], origin: impl AsRef<Path>) -> Result<Array, ReadError> {
    Opened::new(Source::from_bytes(bytes, origin.as_ref())?)?.read()
}

/// An array whose header has been read, and none of its values.
pub(crate) struct Opened<'a> {
    source: Source<'a>,
    header: Header,
    stored: Stored,
    endian: Endian,
    /// The number of letters of each value, for texts.
    letters: Option<usize>,
}

impl<'a> Opened<'a> {
    /// An array of numbers.
    pub(crate) fn new(source: Source<'a>) -> Result<Self, ReadError> {
        Self::of(source, false)
    }

    /// An array of numbers or of texts.
    pub(crate) fn any(source: Source<'a>) -> Result<Self, ReadError> {
        Self::of(source, true)
    }

    fn of(mut source: Source<'a>, takes_texts: bool) -> Result<Self, ReadError> {
        let header = read_header(&mut source)?;
        let texts = texts(&header.descr).filter(|_| takes_texts);
        let letters = texts.map(|(.., letters)| letters);
        let texts = texts.map(|(stored, endian, _)| (stored, endian));
        let Some((stored, endian)) = texts.or_else(|| stored(&header.descr)) else {
            let what = format!(
                "holds values of the NumPy type {:?}",
                excerpt(&header.descr)
            );
            let remedy = remedy(&header.descr);
            return Err(ReadError::Unsupported {
                path: source.origin().into(),
                what,
                remedy,
            });
        };
        let opened = Opened {
            source,
            header,
            stored,
            endian,
            letters,
        };
        opened.source.check_claim(opened.bytes())?;
        Ok(opened)
    }

    /// The extent of each axis, as the header says.
    pub(crate) fn shape(&self) -> &[usize] {
        &self.header.shape
    }

    /// The bytes of its values, if that is a number.
    pub(crate) fn bytes(&self) -> Option<u64> {
        let count = checked_product(&self.header.shape)?;
        let count = count.checked_mul(self.letters.unwrap_or(1))?;
        u64::try_from(count).ok()?.checked_mul(self.stored.bytes())
    }

    /// Whether the values are texts.
    pub(crate) fn is_text(&self) -> bool {
        self.letters.is_some()
    }

    /// The texts, in the order in which they are stored.
    pub(crate) fn read_texts(mut self) -> Result<Vec<String>, ReadError> {
        let (bytes, origin) = (self.bytes(), self.source.origin());
        let no_letter = || ReadError::malformed(origin, "a text holds what is no letter");
        let values = self.source.values(bytes, self.stored, self.endian)?;
        let values: Vec<u32> = match values.map_err(|_| no_letter())? {
            Values::U8(letters) => letters.into_iter().map(u32::from).collect(),
            Values::I64(letters) => {
                let letters = letters.into_iter().map(u32::try_from);
                letters.collect::<Result<_, _>>().map_err(|_| no_letter())?
            }
            _ => return Err(no_letter()),
        };
        let letters = self.letters.unwrap_or(1);
        if letters == 0 {
            let count = checked_product(&self.header.shape).unwrap_or(0);
            return Ok(vec![String::new(); count]);
        }
        let texts = values.chunks_exact(letters).map(|text| {
            // Shorter texts are filled up with zeros.
            let end = text.iter().rposition(|letter| *letter != 0);
            let text = &text[..end.map_or(0, |end| end + 1)];
            let text: Option<String> = text.iter().map(|letter| char::from_u32(*letter)).collect();
            text.ok_or_else(no_letter)
        });
        texts.collect()
    }

    pub(crate) fn read(mut self) -> Result<Array, ReadError> {
        let bytes = self.bytes();
        let origin = self.source.origin();
        let values = self
            .source
            .values(bytes, self.stored, self.endian)?
            .map_err(|at| {
                let what = format!("value {at} does not fit a 64-bit signed integer");
                ReadError::malformed(origin, what)
            })?;
        let shape = self.header.shape;
        if self.header.fortran_order {
            Array::new(shape.clone(), row_major(&shape, values))
        } else {
            Array::new(shape, values)
        }
    }
}

fn read_header(source: &mut Source<'_>) -> Result<Header, ReadError> {
    let origin = source.origin();
    let magic = source.head(MAGIC.len())?;
    if magic != MAGIC {
        return Err(if MAGIC.starts_with(&magic) {
            source.truncated(MAGIC.len() as u64)
        } else {
            ReadError::wrong_magic(origin, FORMAT, &magic)
        });
    }
    let length = match source.header(2)?[..] {
        [1, _] => source
            .header(2)?
            .iter()
            .rev()
            .fold(0, |n, &byte| n << 8 | usize::from(byte)),
        [2 | 3, _] => source
            .header(4)?
            .iter()
            .rev()
            .fold(0, |n, &byte| n << 8 | usize::from(byte)),
        _ => {
            return Err(ReadError::malformed(
                origin,
                "the .npy version is not 1, 2 or 3",
            ));
        }
    };
    if length > MAX_HEADER_BYTES {
        let what = format!("the .npy header is {length} bytes long (at most {MAX_HEADER_BYTES})");
        return Err(ReadError::malformed(origin, what));
    }
    let text = source.header(length)?;
    Header::parse(&text).map_err(|what| {
        ReadError::malformed(origin, format!("the .npy header is not understood: {what}"))
    })
}

/// Reorders column-major values.
fn row_major(shape: &[usize], values: Values) -> Values {
    fn reorder<T: Copy>(shape: &[usize], values: &[T]) -> Vec<T> {
        let strides: Vec<usize> = shape
            .iter()
            .scan(1, |stride, &extent| {
                Some(std::mem::replace(stride, *stride * extent))
            })
            .collect();
        let mut index = vec![0; shape.len()];
        let mut offset = 0;
        let mut out = Vec::with_capacity(values.len());
        while out.len() < values.len() {
            out.push(values[offset]);
            for axis in (0..shape.len()).rev() {
                index[axis] += 1;
                offset += strides[axis];
                if index[axis] < shape[axis] {
                    break;
                }
                offset -= strides[axis] * shape[axis];
                index[axis] = 0;
            }
        }
        out
    }
    match values {
        Values::U8(v) => Values::U8(reorder(shape, &v)),
        Values::I8(v) => Values::I8(reorder(shape, &v)),
        Values::I16(v) => Values::I16(reorder(shape, &v)),
        Values::I32(v) => Values::I32(reorder(shape, &v)),
        Values::I64(v) => Values::I64(reorder(shape, &v)),
        Values::F32(v) => Values::F32(reorder(shape, &v)),
        Values::F64(v) => Values::F64(reorder(shape, &v)),
    }
}

/// What texts are stored as, and their number of letters: `<U6` or `|S6`.
fn texts(descr: &str) -> Option<(Stored, Endian, usize)> {
    let (order, kind) = descr.split_at_checked(1)?;
    let (kind, letters) = kind.split_at_checked(1)?;
    let letters: usize = letters.parse().ok()?;
    match (order, kind) {
        ("<", "U") => Some((Stored::U32, Endian::Little, letters)),
        (">", "U") => Some((Stored::U32, Endian::Big, letters)),
        ("|", "S") => Some((Stored::U8, Endian::Little, letters)),
        _ => None,
    }
}

/// NumPy's type string, such as `<f4`; `None` for anything but a plain number.
fn stored(descr: &str) -> Option<(Stored, Endian)> {
    let (order, kind) = descr.split_at_checked(1)?;
    let stored = match kind {
        "b1" => Stored::Bool,
        "u1" => Stored::U8,
        "i1" => Stored::I8,
        "u2" => Stored::U16,
        "i2" => Stored::I16,
        "u4" => Stored::U32,
        "i4" => Stored::I32,
        "u8" => Stored::U64,
        "i8" => Stored::I64,
        "f2" => Stored::F16,
        "f4" => Stored::F32,
        "f8" => Stored::F64,
        _ => return None,
    };
    match order {
        "<" => Some((stored, Endian::Little)),
        ">" => Some((stored, Endian::Big)),
        "|" if stored.bytes() == 1 => Some((stored, Endian::Little)),
        _ => None,
    }
}

/// What to do about values that are no plain numbers.
fn remedy(descr: &str) -> &'static str {
    let kind = descr.trim_start_matches(['<', '>', '|', '=']);
    match kind.as_bytes() {
        [b'[', ..] => "save each field as an array of its own: array['name']",
        [b'O', ..] => {
            "it holds Python objects, such as lists of different lengths: make one array of \
             numbers of them (numpy.stack) and save that"
        }
        [b'U' | b'S' | b'T', ..] => {
            "texts are read from a CSV file with the columns text and label (--model text); \
             classes are numbers from 0 on: numpy.unique(y, return_inverse=True)[1]"
        }
        [b'c', ..] => "save real and imaginary parts: numpy.stack([x.real, x.imag], -1)",
        [b'M' | b'm', ..] => "save times as numbers: array.astype('int64').astype('float32')",
        _ => "save it as plain numbers: array.astype('float32')",
    }
}

/// The dictionary at the start of a `.npy` file.
struct Header {
    descr: String,
    fortran_order: bool,
    shape: Vec<usize>,
}

impl Header {
    fn parse(text: &[u8]) -> Result<Self, &'static str> {
        let (mut descr, mut fortran_order, mut shape) = (None, None, None);
        let text = std::str::from_utf8(text).map_err(|_| "it is not UTF-8")?;
        let mut scan = Scanner(text.trim());
        scan.expect('{')?;
        while !scan.accept('}') {
            let key = scan.string()?;
            scan.expect(':')?;
            let is_new = match key {
                // A list here is a record type: its text goes into the error.
                "descr" if scan.peek('[') => descr.replace(scan.rest().to_owned()).is_none(),
                "descr" => descr.replace(scan.string()?.to_owned()).is_none(),
                "fortran_order" => fortran_order.replace(scan.boolean()?).is_none(),
                "shape" => shape.replace(scan.shape()?).is_none(),
                _ => return Err("a key is not descr, fortran_order or shape"),
            };
            if !is_new {
                return Err("a key stands twice");
            }
            if descr.as_deref().is_some_and(|descr| descr.starts_with('[')) {
                return Ok(Header {
                    descr: descr.unwrap_or_default(),
                    fortran_order: false,
                    shape: Vec::new(),
                });
            }
            if !scan.accept(',') {
                scan.expect('}')?;
                break;
            }
        }
        if !scan.rest().is_empty() {
            return Err("text follows the closing brace");
        }
        match (descr, fortran_order, shape) {
            (Some(descr), Some(fortran_order), Some(shape)) => Ok(Header {
                descr,
                fortran_order,
                shape,
            }),
            _ => Err("descr, fortran_order or shape is missing"),
        }
    }
}

/// What is left of the header's text.
struct Scanner<'a>(&'a str);

impl<'a> Scanner<'a> {
    fn rest(&self) -> &'a str {
        self.0.trim_start()
    }

    fn peek(&self, token: char) -> bool {
        self.rest().starts_with(token)
    }

    fn accept(&mut self, token: char) -> bool {
        match self.rest().strip_prefix(token) {
            Some(rest) => {
                self.0 = rest;
                true
            }
            None => false,
        }
    }

    fn expect(&mut self, token: char) -> Result<(), &'static str> {
        if self.accept(token) {
            Ok(())
        } else {
            Err("a brace, colon, comma or parenthesis is missing")
        }
    }

    fn string(&mut self) -> Result<&'a str, &'static str> {
        let quote = if self.peek('"') { '"' } else { '\'' };
        self.expect(quote).map_err(|_| "a quoted text is missing")?;
        let (text, rest) = self
            .0
            .split_once(quote)
            .ok_or("a quoted text does not end")?;
        self.0 = rest;
        Ok(text)
    }

    fn boolean(&mut self) -> Result<bool, &'static str> {
        for (word, value) in [("True", true), ("False", false)] {
            if let Some(rest) = self.rest().strip_prefix(word) {
                self.0 = rest;
                return Ok(value);
            }
        }
        Err("fortran_order is not True or False")
    }

    fn shape(&mut self) -> Result<Vec<usize>, &'static str> {
        let mut shape = Vec::new();
        self.expect('(')?;
        while !self.accept(')') {
            if shape.len() == MAX_RANK {
                return Err("the shape has more than 64 axes");
            }
            let text = self.rest();
            let end = text
                .find(|c: char| !c.is_ascii_digit())
                .unwrap_or(text.len());
            let (digits, rest) = text.split_at(end);
            shape.push(
                digits
                    .parse()
                    .map_err(|_| "an extent of the shape is not a number")?,
            );
            // Python 2 wrote long integers as 3L.
            self.0 = rest.strip_prefix('L').unwrap_or(rest);
            if !self.accept(',') {
                self.expect(')')?;
                break;
            }
        }
        Ok(shape)
    }
}

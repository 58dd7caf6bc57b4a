//! Which bits a run had after each of its updates, as a file, and where two runs part.
//!
//! A file has one JSON object a line. The first names the parameters in the (bytewise) order of
//! their paths, with their shapes: `{"bits":1,"parameters":[["conv1.weight",[8,1,3,3]]]}`. Every
//! other one has their hashes after an update: `{"step":3,"sha256":["6ef1.."]}`, each the
//! [`weights_sha256`] of the parameter alone.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};

use burn::tensor::TensorData;
use distribute_core::Result;
use distribute_core::checkpoint::weights_sha256;
use serde::{Deserialize, Serialize};

use crate::FitError;

/// What the first line says of the file.
const VERSION: u32 = 1;
/// The name of a file that is given as a directory.
const FILE_NAME: &str = "bits.jsonl";
/// The digits of a hash.
const DIGITS: usize = 64;

/// The shape and the hash of each parameter, by its path.
pub(crate) type Hashed = BTreeMap<String, (Vec<usize>, String)>;

/// The shape and the hash of a parameter.
pub(crate) fn hashed(path: &str, value: &TensorData) -> Result<(Vec<usize>, String)> {
    Ok((value.shape().to_vec(), weights_sha256([(path, value)])?))
}

/// The first line.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Head {
    bits: u32,
    parameters: Vec<(String, Vec<usize>)>,
}

/// Any other line.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Line {
    pub(crate) step: u64,
    sha256: Vec<String>,
}

impl Head {
    pub(crate) fn of(hashed: &Hashed) -> Self {
        let named = hashed.iter();
        let shaped = named.map(|(path, (shape, _))| (path.clone(), shape.clone()));
        Self {
            bits: VERSION,
            parameters: shaped.collect(),
        }
    }
}

impl Line {
    pub(crate) fn of(step: u64, hashed: Hashed) -> Self {
        let sha256 = hashed.into_values().map(|(_, hash)| hash).collect();
        Self { step, sha256 }
    }
}

/// The file that is meant: one of a fixed name in a directory.
pub(crate) fn file_of(path: &Path) -> PathBuf {
    let names_directory = path.as_os_str().as_encoded_bytes().ends_with(b"/");
    if names_directory || path.is_dir() {
        path.join(FILE_NAME)
    } else {
        path.to_path_buf()
    }
}

/// Reads a file line by line.
pub(crate) struct Reader {
    path: PathBuf,
    lines: Box<dyn BufRead>,
    /// How many lines were read.
    number: usize,
    /// How many bytes were read.
    pub(crate) bytes: u64,
    pub(crate) head: Head,
    /// The step of the line before.
    step: Option<u64>,
}

impl Reader {
    /// Opens the file of a run and reads its first line.
    ///
    /// # Errors
    /// [`FitError::BitsFile`] if it cannot be read, [`FitError::Bits`] for another kind of file.
    pub(crate) fn open(path: &Path) -> Result<Self, FitError> {
        let path = file_of(path);
        let file = File::open(&path).map_err(unreadable(&path))?;
        Self::new(path, Box::new(BufReader::new(file)))
    }

    /// Reads the first line of a file whose text comes from somewhere.
    ///
    /// # Errors
    /// As `open`.
    pub(crate) fn new(path: PathBuf, lines: Box<dyn BufRead>) -> Result<Self, FitError> {
        let mut reader = Self {
            path,
            lines,
            number: 0,
            bytes: 0,
            head: Head::default(),
            step: None,
        };
        let head: Option<Head> = reader.read()?;
        reader.head = head.ok_or_else(|| reader.damaged("is empty"))?;
        match reader.head.bits {
            VERSION => Ok(reader),
            other => {
                let what = format!("is of version {other}, this program reads {VERSION}");
                Err(reader.damaged(&what))
            }
        }
    }

    /// The next update; `None` behind the last one.
    ///
    /// # Errors
    /// [`FitError::Bits`] for a line that is cut off, or of another kind.
    pub(crate) fn next(&mut self) -> Result<Option<Line>, FitError> {
        let line: Option<Line> = self.read()?;
        let Some(line) = line else {
            return Ok(None);
        };
        let is_hash = |hash: &String| {
            hash.len() == DIGITS && hash.bytes().all(|digit| digit.is_ascii_hexdigit())
        };
        let (found, expected) = (line.sha256.len(), self.head.parameters.len());
        if found != expected {
            let what = format!("has {found} hashes for {expected} parameters");
            return Err(self.damaged(&what));
        }
        if !line.sha256.iter().all(is_hash) {
            return Err(self.damaged("has a hash that is none"));
        }
        if let Some(before) = self.step.filter(|before| line.step <= *before) {
            let what = format!("has step {} behind step {before}", line.step);
            return Err(self.damaged(&what));
        }
        self.step = Some(line.step);
        Ok(Some(line))
    }

    fn read<T: for<'a> Deserialize<'a>>(&mut self) -> Result<Option<T>, FitError> {
        let mut bytes = Vec::new();
        let read = self.lines.read_until(b'\n', &mut bytes);
        read.map_err(unreadable(&self.path))?;
        if bytes.is_empty() {
            return Ok(None);
        }
        self.number += 1;
        self.bytes += bytes.len() as u64;
        if bytes.last() != Some(&b'\n') {
            return Err(self.damaged("is cut off"));
        }
        let line = serde_json::from_slice(&bytes);
        line.map(Some)
            .map_err(|error| self.damaged(&format!("is not readable ({error})")))
    }

    fn damaged(&self, what: &str) -> FitError {
        FitError::Bits {
            path: self.path.clone(),
            line: self.number,
            what: what.to_string(),
        }
    }
}

fn unreadable(path: &Path) -> impl FnOnce(io::Error) -> FitError {
    move |source| FitError::BitsFile {
        path: path.to_path_buf(),
        source,
    }
}

/// How two runs compare.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum BitComparison {
    /// All parameters are equal after all updates.
    Equal {
        /// The number of updates that were compared.
        updates: usize,
        /// The last one.
        last_step: u64,
        /// The number of parameters.
        parameters: usize,
    },
    /// Some parameters differ.
    Part {
        /// The first update after which they do.
        step: u64,
        /// The update before it in the files, after which all were equal; `None` if it is the
        /// first.
        equal_until: Option<u64>,
        /// The paths of all that differ after it, in (bytewise) order.
        parameters: Vec<String>,
        /// The number of parameters.
        of: usize,
    },
}

/// Where two runs part, from what [`BitLog`](crate::callbacks::BitLog) wrote of them. Reads one
/// update of each at a time.
///
/// # Errors
/// [`FitError::BitsFile`] for a file that cannot be read, [`FitError::Bits`] for one that is
/// damaged, [`FitError::OtherBits`] for runs of other models or with other steps, and for one that
/// is longer than the other, if all that both have is equal.
pub fn compare_bits(
    first: impl AsRef<Path>,
    second: impl AsRef<Path>,
) -> Result<BitComparison, FitError> {
    let mut first = Reader::open(first.as_ref())?;
    let mut second = Reader::open(second.as_ref())?;
    if let Some(what) = other_model(&first, &second) {
        return Err(FitError::OtherBits { what });
    }
    let [one, other] = [&first, &second].map(|reader| reader.path.display().to_string());
    let of = first.head.parameters.len();
    let (mut updates, mut equal_until) = (0, None);
    loop {
        let (a, b) = match (first.next()?, second.next()?) {
            (Some(a), Some(b)) => (a, b),
            (None, None) => break,
            (Some(more), None) => return Err(longer(&mut first, more, &second)),
            (None, Some(more)) => return Err(longer(&mut second, more, &first)),
        };
        if a.step != b.step {
            let (here, there) = (a.step, b.step);
            let what = format!("{one} has step {here} where {other} has step {there}");
            return Err(FitError::OtherBits { what });
        }
        if a.sha256 != b.sha256 {
            let hashes = a.sha256.iter().zip(&b.sha256);
            let all = first.head.parameters.iter().zip(hashes);
            let differ = all.filter(|(_, (a, b))| a != b);
            return Ok(BitComparison::Part {
                step: a.step,
                equal_until,
                parameters: differ.map(|((path, _), _)| path.clone()).collect(),
                of,
            });
        }
        updates += 1;
        equal_until = Some(a.step);
    }
    let Some(last_step) = equal_until else {
        let what = format!("neither {one} nor {other} has a step");
        return Err(FitError::OtherBits { what });
    };
    Ok(BitComparison::Equal {
        updates,
        last_step,
        parameters: of,
    })
}

/// Why the runs are of other models, if they are.
fn other_model(first: &Reader, second: &Reader) -> Option<String> {
    let both = [first, second].map(|reader| &reader.head.parameters);
    let differ =
        (0..both[0].len().max(both[1].len())).find(|i| both[0].get(*i) != both[1].get(*i))?;
    let named = |index: usize| match both[index].get(differ) {
        Some((path, shape)) => format!("{path} {shape:?}"),
        None => "no parameter more".to_string(),
    };
    Some(format!(
        "{} and {} are of other models: parameter {differ} (from 0) is {} in the one and {} in the \
         other",
        first.path.display(),
        second.path.display(),
        named(0),
        named(1)
    ))
}

/// That one run is longer; or why the rest of it cannot be read.
fn longer(reader: &mut Reader, more: Line, short: &Reader) -> FitError {
    let mut last = more.step;
    loop {
        match reader.next() {
            Ok(Some(line)) => last = line.step,
            Ok(None) => break,
            Err(error) => return error,
        }
    }
    let (long, short_path) = (reader.path.display(), short.path.display());
    let what = match short.step {
        Some(step) => format!(
            "{long} is longer, up to step {last}; both are equal up to step {step}, where \
             {short_path} ends"
        ),
        None => format!("{short_path} has no step, {long} has some, up to step {last}"),
    };
    FitError::OtherBits { what }
}

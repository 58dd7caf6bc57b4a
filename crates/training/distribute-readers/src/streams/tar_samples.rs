//! Archives of samples, as WebDataset has them.

use std::collections::BTreeMap;
use std::path::PathBuf;

use distribute_pipeline::{PipelineError, Result, State, Stream};

use super::bad::{Bad, Skipped};
use super::input::{Input, Place, unreadable};
use super::tar_header::{Member, TarFault, next_member};

const STAGE: &str = "tar_samples";

/// The largest member, unless another limit is set.
const MAX_MEMBER_BYTES: u64 = 1 << 30;

/// One sample of a WebDataset: files that have the same name up to the first point.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct TarSample {
    /// The name up to the first point, with its folders: `train/0001`.
    pub key: String,
    /// The files by what is behind the point, in small letters: `jpg`, `cls`, `seg.png`.
    pub files: BTreeMap<String, Vec<u8>>,
}

/// The samples of tar archives, plain or by gzip, one archive after the other, as WebDataset reads
/// them: members that follow each other with the same name up to the first point are one sample.
/// Folders, links and members without a point are passed.
#[must_use]
pub struct TarSamples {
    place: Place,
    limit: u64,
    required: Vec<String>,
    bad: Bad,
    input: Option<Input>,
    /// The first member of the next sample, which ended the last one.
    pending: Option<Member>,
}

impl TarSamples {
    /// The samples of these archives.
    pub fn new(files: impl IntoIterator<Item = impl Into<PathBuf>>) -> Self {
        Self {
            place: Place::new(files),
            limit: MAX_MEMBER_BYTES,
            required: Vec::new(),
            bad: Bad::default(),
            input: None,
            pending: None,
        }
    }

    /// Every sample must have these files: `["jpg", "cls"]`.
    pub fn require(mut self, files: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.required = files.into_iter().map(Into::into).collect();
        self
    }

    /// Larger members are errors; the default limit is 1 GiB.
    pub fn max_member_bytes(mut self, limit: u64) -> Self {
        self.limit = limit;
        self
    }

    /// Skips bad samples of a pass up to a number and counts them; behind an archive that is
    /// damaged or cut off it goes on with the next one.
    pub fn skip_bad(mut self, limit: u64) -> Self {
        self.bad.limit = limit;
        self
    }

    /// The samples that were skipped in this pass.
    pub fn skipped(&self) -> &Skipped {
        &self.bad.skipped
    }

    fn fault(&self, what: &str) -> PipelineError {
        let path = self.place.path().map(|path| path.display().to_string());
        let (path, element) = (path.unwrap_or_default(), self.place.element);
        PipelineError::other(format!("{path}: sample {element}: {what}"))
    }

    /// The next member with a point in its name, and its key and extension.
    fn member(&mut self) -> Result<Option<Named>, TarFault> {
        let Some(input) = &mut self.input else {
            return Ok(None);
        };
        let mut offset = self.place.offset;
        loop {
            let member = match self.pending.take() {
                Some(member) => member,
                None => match next_member(input, offset, self.limit)? {
                    Some(member) => member,
                    None => return Ok(None),
                },
            };
            offset = member.end;
            self.place.offset = offset;
            if let Some((key, extension)) = split(&member.name) {
                return Ok(Some((key, extension, member)));
            }
        }
    }

    /// The next sample; none at the end of the archive.
    fn sample(&mut self) -> Result<Option<TarSample>, TarFault> {
        let Some((key, extension, member)) = self.member()? else {
            return Ok(None);
        };
        let mut files = BTreeMap::from([(extension, member.data)]);
        let (mut double, mut fault) = (None, member.fault);
        while let Some((other, extension, member)) = self.member()? {
            if other != key {
                self.place.offset = member.start;
                self.pending = Some(member);
                break;
            }
            fault = fault.or(member.fault);
            if files.insert(extension.clone(), member.data).is_some() {
                double = Some(extension);
            }
        }
        self.place.element += 1;
        if let Some(fault) = fault {
            return Err(TarFault::Bad(fault));
        }
        if let Some(double) = double {
            return Err(TarFault::Bad(format!("`{key}` has two files `.{double}`")));
        }
        let missing = self
            .required
            .iter()
            .filter(|name| !files.contains_key(*name));
        let missing: Vec<String> = missing.map(|name| format!("`.{name}`")).collect();
        if missing.is_empty() {
            return Ok(Some(TarSample { key, files }));
        }
        let (missing, found) = (missing.join(", "), files.into_keys().collect::<Vec<_>>());
        let found = found.join(", ");
        Err(TarFault::Bad(format!(
            "`{key}` lacks {missing}; it has {found}"
        )))
    }

    fn next_file(&mut self) {
        (self.input, self.pending) = (None, None);
        self.place.go_to_file(self.place.file + 1);
    }
}

/// A member with its key and extension.
type Named = (String, String, Member);

/// The name up to the first point of the file's own name, and what is behind it.
fn split(name: &str) -> Option<(String, String)> {
    let own = name.rfind('/').map_or(0, |slash| slash + 1);
    let point = own + name[own..].find('.')?;
    let key = name[..point].trim_start_matches("./");
    let extension = name[point + 1..].to_lowercase();
    (point > own && !extension.is_empty()).then(|| (key.to_string(), extension))
}

impl Stream for TarSamples {
    type Item = TarSample;

    fn next(&mut self) -> Result<Option<TarSample>> {
        loop {
            let Some(path) = self.place.path() else {
                return Ok(None);
            };
            let failed = |source| unreadable(STAGE, path, source);
            if self.input.is_none() {
                let mut input = Input::open(path).map_err(failed)?;
                input.pass(self.place.offset).map_err(failed)?;
                self.input = Some(input);
            }
            let before = self.place.element;
            match self.sample() {
                Ok(Some(sample)) => {
                    self.place.last = Some(self.place.file);
                    return Ok(Some(sample));
                }
                Ok(None) => self.next_file(),
                Err(TarFault::Read(source)) => {
                    let path = self.place.path().unwrap_or("".as_ref());
                    return Err(unreadable(STAGE, path, source));
                }
                Err(TarFault::Bad(what)) => {
                    let fault = self.fault(&what);
                    // Behind what is no sample there is no place to go on in this archive.
                    if self.place.element == before {
                        self.next_file();
                    }
                    self.bad.skip(fault)?;
                }
            }
        }
    }

    super::input::of_files!(STAGE, input, pending);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_split_at_the_first_point() {
        let split = |name| split(name).map(|(key, rest)| format!("{key}|{rest}"));
        assert_eq!(
            split("a/b.c/01.SEG.png").as_deref(),
            Some("a/b.c/01|seg.png")
        );
        assert_eq!(split("./01.cls").as_deref(), Some("01|cls"));
        assert_eq!(
            (split("readme"), split(".hidden"), split("a.")),
            (None, None, None)
        );
    }
}

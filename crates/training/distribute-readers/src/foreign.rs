//! What a file is that is not what was expected, as far as its first bytes say it.

/// How many bytes [`known`] looks at.
pub(crate) const START_BYTES: usize = 64;

/// The beginning of a pointer of Git LFS, which is text.
const LFS: &[u8] = b"version https://git-lfs";
/// The beginnings of HTML and XML, in any case.
const MARKUP: [&str; 3] = ["<!doctype", "<html", "<?xml"];
/// The beginnings of files that are often taken for others.
const STARTS: [(&[u8], &str); 21] = [
    (
        LFS,
        "a pointer of Git LFS; `git lfs pull` fetches the file itself",
    ),
    (b"PK\x03\x04", "a zip archive"),
    (b"\x1f\x8b", "gzip-compressed"),
    (b"BZh", "bzip2-compressed"),
    (b"\xfd7zXZ", "xz-compressed"),
    (b"\x28\xb5\x2f\xfd", "zstd-compressed"),
    (b"7z\xbc\xaf", "a 7-Zip archive"),
    (b"\x93NUMPY", "one NumPy array (.npy)"),
    (b"\x89PNG", "a PNG image"),
    (b"\xff\xd8\xff", "a JPEG image"),
    (b"GIF8", "a GIF image"),
    (b"BM", "a BMP image"),
    (b"\x89HDF", "an HDF5 file (.h5)"),
    (b"%PDF", "a PDF"),
    (b"PAR1", "a Parquet file"),
    (b"ARROW1", "an Arrow file"),
    (b"SQLite format 3", "an SQLite database"),
    (b"\x80\x02", "a Python pickle"),
    (b"\x80\x03", "a Python pickle"),
    (b"\x80\x04", "a Python pickle"),
    (b"\x80\x05", "a Python pickle"),
];
/// The byte order marks of UTF-16, and the one of UTF-8.
const UTF16: [&[u8]; 2] = [b"\xff\xfe", b"\xfe\xff"];
const UTF8_MARK: &[u8] = b"\xef\xbb\xbf";

/// What the file is, as it follows on "is", if its first bytes are known.
pub(crate) fn known(start: &[u8]) -> Option<&'static str> {
    if is_utf16(start) {
        return Some("text in UTF-16");
    }
    let text = start.strip_prefix(UTF8_MARK).unwrap_or(start);
    if text.trim_ascii_start().starts_with(b"<") {
        return Some("HTML or XML, as a server sends it in place of a file");
    }
    let found = STARTS.iter().find(|(magic, _)| start.starts_with(magic));
    found.map(|(_, what)| *what)
}

/// [`known`] for a file that should be text: text may begin with the letters that a format begins
/// with, and bytes that are no text do not follow on it.
pub(crate) fn known_in_text(start: &[u8]) -> Option<&'static str> {
    let text = start
        .strip_prefix(UTF8_MARK)
        .unwrap_or(start)
        .trim_ascii_start();
    if text.starts_with(b"<") && !is_utf16(start) {
        let begins = |with: &str| {
            let first = text.get(..with.len());
            first.is_some_and(|first| first.eq_ignore_ascii_case(with.as_bytes()))
        };
        return known(start).filter(|_| MARKUP.into_iter().any(begins));
    }
    let letters = STARTS.iter().map(|(magic, _)| *magic).find(|magic| {
        start.starts_with(magic) && magic.iter().all(|byte| (b' '..0x7f).contains(byte))
    });
    let is_binary = |magic: &[u8]| {
        // Two letters and a byte of another encoding are no image either.
        let other = std::str::from_utf8(start).is_err_and(|error| error.error_len().is_some());
        start.contains(&0) || (other && magic.len() > 2)
    };
    known(start).filter(|_| letters.is_none_or(|magic| magic == LFS || is_binary(magic)))
}

/// Text in UTF-16 begins with a mark, or its letters stand beside zeros.
pub(crate) fn is_utf16(start: &[u8]) -> bool {
    let zeros = |first: usize| {
        let mut places = start.iter().skip(first).step_by(2).take(8);
        start.len() >= 16 && places.all(|byte| *byte == 0)
    };
    let letters = |first: usize| {
        let mut places = start.iter().skip(first).step_by(2).take(8);
        places.all(|byte| (9..127).contains(byte))
    };
    UTF16.iter().any(|mark| start.starts_with(mark))
        || (zeros(1) && letters(0))
        || (zeros(0) && letters(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_known_by_their_beginnings() {
        let utf16: Vec<u8> = "a,b,label\n1,2"
            .encode_utf16()
            .flat_map(u16::to_le_bytes)
            .collect();
        for (start, what) in [
            (&b"\n <!DOCTYPE html><html>"[..], "HTML"),
            (b"version https://git-lfs.github.com/spec/v1", "Git LFS"),
            (b"PK\x03\x04\x14", "zip"),
            (b"\xff\xfea\0,\0", "UTF-16"),
            (&utf16, "UTF-16"),
            (b"\x89HDF\r\n\x1a\n", "HDF5"),
        ] {
            assert!(known(start).is_some_and(|it| it.contains(what)), "{what}");
        }
        for (start, what) in [
            (&b"\n <!DOCTYPE html>"[..], "HTML"),
            (b"\xef\xbb\xbf<HTML lang=en>", "HTML"),
            (b"<?xml version='1.0'?><Error>", "XML"),
            (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS"),
            (b"PK\x03\x04\x14", "zip"),
            (b"BM\x36\x10\0\0", "BMP"),
            (b"GIF89a\x10\0", "GIF"),
            (b"%PDF-1.7\n%\xe2\xe3\n", "PDF"),
            (b"PAR1\x15\0", "Parquet"),
            (b"\xff\xfe<\0h\0", "UTF-16"),
        ] {
            assert!(
                known_in_text(start).is_some_and(|it| it.contains(what)),
                "{what}"
            );
        }
        for plain in [
            &b"BMI,age,label\n1,2,0\n"[..],
            b"BMI,gr\xf6\xdfe,label\n1,2,0\n",
            b"PAR1,PAR2,label\n1,2,0\n",
            b"GIF8,x,label\n1,2,0\n",
            b"7z,x,label\n1,2,0\n",
            b"BZh,ARROW1,label\n1,2,0\n",
            b"%PDF,caf\xc3\xa9,label\n",
            b"SQLite format 3,x,label\n",
            b"<3 this film\nbad\n",
            b"<br>good,1\n",
        ] {
            assert_eq!(known_in_text(plain), None, "{}", plain.escape_ascii());
        }
        for plain in [&b"a,b,label\n1,2,0\n"[..], b"", b"\0\0\x08\x03", &[0; 64]] {
            assert_eq!(known(plain), None);
        }
    }
}

//! No bytes make a reader panic, and no header makes it allocate what the file cannot hold.

use distribute_readers::{
    CsvOptions, ImageColor, ReadError, parse_csv, parse_idx, parse_npy, parse_npz, parse_text_csv,
    read_image_folder,
};
use image::ImageFormat;
use proptest::prelude::*;
use proptest::sample::Index;
use tempfile::tempdir;

use crate::common::*;

/// Reads `bytes` with every reader; the results do not matter.
fn read_all(bytes: &[u8]) {
    let _ = parse_idx(bytes, "x");
    let _ = parse_npy(bytes, "x");
    let _ = parse_npz(bytes, "x");
    let _ = parse_csv(bytes, "x", &CsvOptions::default());
    let _ = parse_text_csv(bytes, "x");
}

fn read_as_image(bytes: &[u8]) {
    let folder = tempdir().unwrap();
    write(folder.path(), "class/1.png", bytes);
    let _ = read_image_folder(folder.path(), ImageColor::AsStored);
}

/// A good file of each kind, so that damage reaches what lies behind the first check.
fn good_files() -> Vec<Vec<u8>> {
    let npy_file = npy("'<f4'", true, "(2, 3)", &[1; 24]);
    let labels = npy("'|u1'", false, "(2,)", &[0, 1]);
    let members = [("x", npy_file.clone()), ("y", labels)];
    let idx_file = idx(0x0b, &[2, 2, 3], &[5; 24]);
    vec![
        gzip(&idx_file),
        idx_file,
        gzip(&npy_file),
        npy_file,
        npz(&members, false),
        npz(&members, true),
        b"a,b,label\n1,2,0\n\"3\",4.5,1\n".to_vec(),
        b"text,label\n\"good, \"\"really\"\"\",1\nbad,0\n".to_vec(),
        encode(&gray(5, 4, 9), ImageFormat::Png),
        encode(&plain_color(9, 8, [3, 99, 200]), ImageFormat::Jpeg),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn random_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        read_all(&bytes);
    }

    /// Random bytes after the magic of every format.
    #[test]
    fn random_bytes_with_a_magic(
        magic in prop::sample::select(vec![
            &[0, 0, 8, 1][..], &[0, 0, 14, 3], &[0x1f, 0x8b, 8, 0], b"\x93NUMPY\x01\x00\x40\x00",
            b"\x93NUMPY\x03\x00\x40\x00\x00\x00", b"PK\x03\x04", b"text,label\n",
        ]),
        rest in proptest::collection::vec(any::<u8>(), 0..300),
    ) {
        read_all(&[magic, &rest].concat());
    }

    /// Any text as the header of a `.npy` file, made of what such headers are made of.
    #[test]
    fn npy_headers(
        tokens in proptest::collection::vec(
            prop::sample::select(vec![
                "{", "}", "'", "\"", "descr", "'descr'", ":", ",", "'<f4'", "'fortran_order'",
                "False", "True", "'shape'", "(", ")", "3", "18446744073709551615", "0", "[", "L",
                " ", "\u{e9}",
            ]),
            0..20,
        ),
    ) {
        let _ = parse_npy(&npy_text(&tokens.concat(), &[0; 12]), "x");
    }

    /// A good file with some bytes changed and its end cut off.
    #[test]
    fn damaged_files(
        which: Index,
        changes in proptest::collection::vec((any::<Index>(), any::<u8>()), 0..4),
        cut in proptest::option::of(any::<Index>()),
    ) {
        let mut bytes = which.get(&good_files()).clone();
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        read_all(&bytes);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn damaged_images(
        is_png: bool,
        changes in proptest::collection::vec((any::<Index>(), any::<u8>()), 0..4),
        cut in proptest::option::of(any::<Index>()),
    ) {
        let mut bytes = good_files().swap_remove(if is_png { 8 } else { 9 });
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        read_as_image(&bytes);
    }
}

/// The last 22 bytes of a zip archive say how many members there are and where; each member says
/// how large it is. Every such field is set to its largest value.
#[test]
fn zip_archives_with_giant_fields() {
    let good = npz(
        &[
            ("x", npy("'|u1'", false, "(1,)", &[1])),
            ("y", npy("'|u1'", false, "(1,)", &[0])),
        ],
        true,
    );
    assert!(parse_npz(&good, "x").is_ok());
    for width in [1, 2, 4, 8] {
        for at in 0..good.len() - width {
            let mut bytes = good.clone();
            bytes[at..at + width].fill(0xff);
            let _ = parse_npz(&bytes, "x");
        }
    }
}

/// Runs the test below in a process of its own that may use 1 GiB of address space.
#[cfg(target_os = "linux")]
#[test]
fn giant_headers_allocate_next_to_nothing() {
    let program = std::env::current_exe().unwrap();
    let status = std::process::Command::new("sh")
        .args([
            "-c",
            "ulimit -v 1048576 && exec \"$0\" --exact hostile::giant_headers",
        ])
        .arg(program)
        .status()
        .unwrap();
    assert!(status.success());
}

/// Every file here claims 4 GiB or more. Where the claim is seen to be false from the length of
/// the file, the error says so; an allocation would have ended in another error, or in an abort.
#[test]
fn giant_headers() {
    let giant = [8, 9, 0x0b, 0x0c, 0x0d, 0x0e].map(|code| idx(code, &[1 << 16, 1 << 16], &[0; 64]));
    for file in giant {
        let plain = parse_idx(&file, "x").unwrap_err();
        assert!(
            matches!(
                plain,
                ReadError::Truncated {
                    found_bytes: 76,
                    ..
                }
            ),
            "{plain}"
        );
        let compressed = parse_idx(&gzip(&file), "x").unwrap_err();
        assert!(
            matches!(compressed, ReadError::TooLarge { .. }),
            "{compressed}"
        );
    }
    let member = npy("'<f8'", false, "(65536, 65536)", &[0; 64]);
    assert!(matches!(
        parse_npy(&member, "x"),
        Err(ReadError::Truncated { .. })
    ));
    let labels = npy("'|u1'", false, "(2,)", &[0, 1]);
    for deflated in [false, true] {
        let archive = npz(&[("x", member.clone()), ("y", labels.clone())], deflated);
        assert!(matches!(
            parse_npz(&archive, "x"),
            Err(ReadError::TooLarge { .. })
        ));
    }
    // A claim within the reach of deflate, and still false: one byte too many.
    let zeros = gzip(&idx(8, &[(1 << 21) + 1], &[0; 1 << 21]));
    let cut = parse_idx(&zeros, "x").unwrap_err();
    assert!(
        matches!(
            cut,
            ReadError::Truncated {
                found_bytes: 2_097_160,
                ..
            }
        ),
        "{cut}"
    );
}

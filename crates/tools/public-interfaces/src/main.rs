//! Writes the public items of libraries to a folder, one per line.
//!
//! `public-interfaces FOLDER JSON..`, where JSON is what rustdoc has written of a library.
#![forbid(unsafe_code)]
#![deny(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

fn main() -> ExitCode {
    let mut paths = std::env::args_os().skip(1).map(PathBuf::from);
    let Some(folder) = paths.next() else {
        eprintln!("usage: public-interfaces FOLDER JSON..");
        return ExitCode::from(2);
    };
    for json in paths {
        if let Err(error) = list(&json, &folder) {
            eprintln!("{}: {error}", json.display());
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

fn list(json: &Path, folder: &Path) -> Result<(), Box<dyn Error>> {
    let items = public_api::Builder::from_rustdoc_json(json)
        .omit_blanket_impls(true)
        .omit_auto_trait_impls(true)
        .omit_auto_derived_impls(true)
        .build()?;
    let lines: String = items.items().map(|item| format!("{item}\n")).collect();
    let name = json.with_extension("txt");
    let name = name.file_name().ok_or("it has no name")?;
    std::fs::write(folder.join(name), lines)?;
    Ok(())
}

//! What is no plugin, or not one for us, or not a whole one: typed errors, and never a crash.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use distribute_tpu_xla::pjrt::{ApiVersion, ErrorCode, PjrtError, Plugin, Value};

/// Compiles a library from a file beside this one; nothing, and a line that says so, without a C
/// compiler.
pub fn compile_c(source: &str, folder: &Path, defines: &[&str]) -> Option<PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/tpu_xla/pjrt")
        .join(source);
    let library = folder.join("plugin.so");
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-fPIC", "-o"])
        .arg(&library)
        .arg(source);
    cc.args(defines.iter().map(|define| format!("-D{define}")))
        .arg("-ldl");
    let Ok(output) = cc.output() else {
        println!("SKIPPED: no C compiler `cc` to make a false plugin with: install gcc");
        return None;
    };
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    Some(library)
}

/// Loads the false plugin with these defines.
fn load(defines: &[&str]) -> Option<Result<Plugin, PjrtError>> {
    let folder = tempfile::tempdir().unwrap();
    Some(Plugin::load(compile_c("fake.c", folder.path(), defines)?))
}

fn load_error(defines: &[&str]) -> Option<PjrtError> {
    Some(load(defines)?.expect_err("the false plugin was loaded"))
}

#[test]
fn what_cannot_be_loaded_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let text = folder.path().join("plugin.so");
    fs::write(&text, "this is text\n".repeat(100)).unwrap();
    let cases = [
        (folder.path().join("missing.so"), "No such file"),
        (text, "invalid ELF header"),
        (folder.path().to_path_buf(), "directory"),
    ];
    for (path, reason) in cases {
        let error = Plugin::load(&path).unwrap_err();
        assert!(matches!(error, PjrtError::Load { .. }), "{error:?}");
        let message = error.to_string();
        assert!(message.contains(reason), "{message}");
        assert!(message.contains(path.to_str().unwrap()), "{message}");
    }
}

#[test]
fn a_library_that_is_no_plugin_is_refused() {
    let cases: [(&[&str], &str); 4] = [
        (
            &["SYMBOL=SomethingElse"],
            "does not export the function GetPjrtApi",
        ),
        (&["NO_TABLE"], "returned no table"),
        (&["SIZE=8"], "has 8 bytes"),
        (&["SIZE=39"], "has 39 bytes"),
    ];
    for (defines, reason) in cases {
        let Some(error) = load_error(defines) else {
            return;
        };
        assert!(matches!(error, PjrtError::NotAPlugin { .. }), "{error:?}");
        assert!(error.to_string().contains(reason), "{error}");
    }
}

#[test]
fn another_version_is_refused() {
    let cases: [(&[&str], (i32, i32)); 4] = [
        (&["MAJOR=1"], (1, 90)),
        (&["MAJOR=-1"], (-1, 90)),
        (&["MINOR=28"], (0, 28)),
        (&["NO_ERRORS"], (0, 90)),
    ];
    for (defines, (major, minor)) in cases {
        let Some(error) = load_error(defines) else {
            return;
        };
        let PjrtError::Version { plugin, .. } = &error else {
            panic!("{error:?}")
        };
        assert_eq!(*plugin, ApiVersion { major, minor });
        assert!(
            error.to_string().contains("needs 0.29 or a newer 0.x"),
            "{error}"
        );
    }
}

#[test]
fn initialization_must_succeed() {
    let Some(error) = load_error(&["INITIALIZE_FAILS"]) else {
        return;
    };
    let PjrtError::Initialize { code, message, .. } = &error else {
        panic!("{error:?}")
    };
    assert_eq!(*code, ErrorCode::FailedPrecondition);
    assert_eq!(message, "no hardware \u{fffd} here");
    for defines in [&["NO_INITIALIZE"][..], &["ENTRIES=3"], &["SIZE=40+3*8+7"]] {
        let Some(error) = load_error(defines) else {
            return;
        };
        let PjrtError::MissingFunction { function, .. } = &error else {
            panic!("{error:?}")
        };
        assert_eq!(*function, "PJRT_Plugin_Initialize");
    }
}

#[test]
fn what_a_plugin_leaves_out_is_an_error_when_it_is_needed() {
    // A table that ends early, one that is older, one with a hole, and one that is longer than
    // ours.
    for defines in [
        &["ENTRIES=10"][..],
        &["ENTRIES=10", "MINOR=29"],
        &[],
        &["SIZE=4000"],
    ] {
        let Some(plugin) = load(defines) else { return };
        let plugin = plugin.unwrap();
        let attributes = plugin.attributes().unwrap();
        assert_eq!(attributes["first"], Value::Int64(41));
        assert_eq!(attributes["yes"], Value::Bool(true));
        assert_eq!(
            attributes.len(),
            2,
            "a value of an unknown type is left out"
        );
        let error = plugin.client(&[]).unwrap_err();
        let PjrtError::MissingFunction { function, .. } = &error else {
            panic!("{error:?}")
        };
        assert_eq!(*function, "PJRT_Client_Create");
        assert!(error.is_unimplemented());
        assert!(plugin.topology("any", &[]).unwrap_err().is_unimplemented());
    }
}

#[test]
fn answers_that_break_the_contract_are_errors() {
    let Some(plugin) = load(&["CLIENT=unimplemented"]) else {
        return;
    };
    let error = plugin.unwrap().client(&[]).unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::Unimplemented));
    assert!(error.is_unimplemented());
    assert_eq!(
        error.to_string(),
        "PJRT_Client_Create: not here (UNIMPLEMENTED, code 12)"
    );
    let Some(plugin) = load(&["CLIENT=ok"]) else {
        return;
    };
    let error = plugin.unwrap().client(&[]).unwrap_err();
    assert!(matches!(error, PjrtError::Malformed { .. }), "{error:?}");
}

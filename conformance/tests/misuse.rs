//! Misuse that TensorFlow finds at run time, if at all, and the compiler finds here, each for the
//! reason that is meant: the compiler's whole message is compared.
//!
//! trybuild checks burn once more, in a target directory of its own (80 s on two cores, then 3 s).

use std::process::Command;

/// Whose messages the `.stderr` files hold. Other versions put things in other words.
const COMPILER: &str = "rustc 1.95.";

#[test]
fn misuse_does_not_compile() {
    let compiler = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let version = Command::new(compiler).arg("--version").output().unwrap();
    let version = String::from_utf8(version.stdout).unwrap();
    if !version.starts_with(COMPILER) {
        println!(
            "SKIPPED misuse: the messages are those of {COMPILER}, this is {version}; that misuse \
             does not compile is also checked by the documentation tests"
        );
        return;
    }
    trybuild::TestCases::new().compile_fail("tests/misuse/*.rs");
}

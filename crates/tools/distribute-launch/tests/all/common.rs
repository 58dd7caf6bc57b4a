//! What the tests with real processes share.

use std::path::{Path, PathBuf};
use std::time::Duration;

use distribute_launch::{Console, Job, LaunchError, Outcome, Security, Token, run};

/// Longer than any test here takes on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);

/// Fails instead of hanging.
pub fn within_limit<T: Send + 'static>(test: impl FnOnce() -> T + Send + 'static) -> T {
    hostile::limit::within(LIMIT, test)
}

/// A job of shell scripts that know their role `$r` and index `$i`; `await FILE...` waits for
/// files.
pub fn script(text: &str) -> Job {
    let begin = r#"t=${TF_CONFIG##*type\":\"}; r=${t%%\"*}; i=${t##*:}; i=${i%\}\}}
        await() { for f; do while [ ! -e "$f" ]; do sleep 0.02; done; done; }
        "#;
    Job::new(["sh", "-c", &format!("{begin}{text}")])
        .handle_signals(false)
        .restart_pause(Duration::ZERO)
}

/// As [`script`], begun in this directory, where the processes say with files how far they are.
pub fn script_in(directory: &Path, text: &str) -> Job {
    script(&format!("cd '{}'; {text}", directory.display()))
}

pub const SECRET: &str = "a secret of more than 16 bytes";

/// A token and no certificates.
pub fn security() -> Security {
    Security::default().token(Token::new(SECRET).expect("it is long"))
}

/// What a job left on its console.
pub struct Seen {
    pub result: Result<Outcome, LaunchError>,
    pub stdout: Vec<u8>,
    pub stderr: String,
    /// Removes the log directory that was kept, with this.
    _kept: Kept,
}

pub struct Kept(Option<PathBuf>);

impl Drop for Kept {
    fn drop(&mut self) {
        if let Some(path) = &self.0 {
            let _never_kept = std::fs::remove_dir_all(path);
        }
    }
}

impl Seen {
    #[track_caller]
    pub fn outcome(&self) -> &Outcome {
        self.result.as_ref().expect("the job runs")
    }
}

pub fn see(job: Job) -> Seen {
    within_limit(move || {
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        let result = run(&job, &mut Console::new(&mut stdout, &mut stderr));
        let stderr = String::from_utf8_lossy(&stderr).into_owned();
        let mut lines = stderr.lines();
        let logs = lines.find_map(|line| line.strip_prefix("distribute: log files are in "));
        Seen {
            result,
            stdout,
            _kept: Kept(logs.map(PathBuf::from)),
            stderr,
        }
    })
}

pub fn read(path: impl AsRef<Path>) -> String {
    let bytes = std::fs::read(path.as_ref()).unwrap_or_else(|error| {
        panic!("{}: {error}", path.as_ref().display());
    });
    String::from_utf8_lossy(&bytes).into_owned()
}

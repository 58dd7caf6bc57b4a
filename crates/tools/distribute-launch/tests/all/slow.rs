//! Workers that say that they are slow.

use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Duration;

use distribute_launch::{Console, LaunchError, Outcome, run};

use crate::common::{read, script, script_in, see, within_limit};

/// Standard error of the launcher; makes a file when a line has this text.
struct Told {
    text: String,
    awaited: &'static str,
    file: PathBuf,
}

impl Write for Told {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.text += &String::from_utf8_lossy(bytes);
        if self.text.contains(self.awaited) {
            std::fs::write(&self.file, "")?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_job_goes_on_without_a_slow_worker_and_keeps_one_that_it_needs() {
    let directory = tempfile::tempdir().unwrap();
    // The workers of the second start end when the launcher has answered.
    let text = r#"c=${TF_CONFIG%%]*}; n=$(echo "$c" | grep -o ':[0-9]*"' | wc -l)
        echo $CUDA_VISIBLE_DEVICES >> gpus$i; trap 'exit 42' TERM
        [ $i = 1 ] && echo "rank 1 of $n is slow" > $DISTRIBUTE_SLOW
        [ $n = 2 ] && await kept && exit 0
        while :; do sleep 0.05; done"#;
    let job = script_in(directory.path(), text)
        .elastic_workers(2..=3)
        .gpus_per_worker(1)
        .drop_stragglers(Duration::ZERO);
    let told = Told {
        text: String::new(),
        awaited: "rank 1 of 2 is slow: the job goes on with it all the same",
        file: directory.path().join("kept"),
    };
    let (result, told) = within_limit(move || {
        let (mut stdout, mut told) = (Vec::new(), told);
        let result = run(&job, &mut Console::new(&mut stdout, &mut told));
        (result, told.text)
    });
    assert_eq!(result.unwrap(), Outcome::Succeeded { restarts: 1 });
    for said in [
        "rank 1 of 3 is slow: the job goes on without this worker",
        "going on with 2 workers instead of 3 (shrink 1, growth 0, restart 0 of 0)",
    ] {
        assert!(told.contains(said), "{said}: {told}");
    }
    // Its GPU is left alone.
    assert_eq!(read(directory.path().join("gpus1")), "1\n2\n");
    assert_eq!(told.matches("all the same").count(), 1, "{told}");
}

#[test]
fn workers_of_other_jobs_have_nowhere_to_say_that_they_are_slow() {
    let seen = see(script("exit ${DISTRIBUTE_SLOW:+1}").elastic_workers(1..=2));
    assert_eq!(*seen.outcome(), Outcome::Succeeded { restarts: 0 });
    let fixed = script("true").workers(2).drop_stragglers(Duration::ZERO);
    let refused = see(fixed).result.unwrap_err();
    assert!(matches!(refused, LaunchError::DropsFromFixedJob));
    assert!(refused.to_string().contains("`Job::drop_stragglers`"));
}

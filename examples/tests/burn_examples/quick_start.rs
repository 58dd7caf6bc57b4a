//! The program of the quick start, with another strategy in its first line.

use std::sync::Arc;

use burn::nn::{Linear, LinearConfig};
use distribute::checkpoint;
use distribute::prelude::*;

fn forward(model: &Linear, images: Tensor<4>) -> Tensor<2> {
    model.forward(images.flatten::<2>(1, 3))
}

/// A program for each strategy; what follows the first line is always the same.
macro_rules! with_each {
    ($($name:ident: $strategy:expr;)*) => {
        $(
            fn $name(folder: &str) -> Result<()> {
                let strategy = $strategy;
                let (digits, batching) = (Digits::open()?, Batching::global(64));
                let train = strategy.distribute_dataset(digits.train()?, batching.shuffle(42))?;
                let test = strategy.distribute_dataset(digits.test()?, batching)?;
                let mut state = strategy.scope(|device| {
                    device.seed(42);
                    TrainState::new(LinearConfig::new(64, 10).init(device), Adam::new(1e-2))
                })?;
                let saver = ModelCheckpoint::with_workers(&strategy, folder)?.every_steps(20);
                let newest = checkpoint::load_latest(folder)?
                    .found
                    .map(|(_, checkpoint)| checkpoint);
                let objective = Supervised::new(forward, SparseCategoricalCrossentropy::default())
                    .accuracy()
                    .objective();
                let history = Fit::new(&strategy)
                    .epochs(10)
                    .resume_from(newest)
                    .callback(saver)
                    .run_with_validation(&mut state, &train, &test, objective)?;
                if strategy.is_chief() {
                    match history.epochs.last() {
                        Some(epoch) => println!("{}", epoch.logs),
                        None => println!("all epochs are done: remove {folder} to train anew"),
                    }
                }
                Ok(())
            }
        )*

        const PROGRAMS: &[(&str, fn(&str) -> Result<()>)] = &[$((stringify!($name), $name),)*];
    };
}

with_each! {
    default: DefaultStrategy::new();
    one_device: OneDeviceStrategy::new("cpu:0".parse()?)?;
    mirrored: MirroredStrategy::new()?;
    mirrored_on_two: MirroredStrategy::builder().replicas(2).build()?;
    central_storage: CentralStorageStrategy::with_replicas(2)?;
    one_worker: MultiWorkerMirroredStrategy::builder().cluster(None).build()?;
    shared: Arc::new(MirroredStrategy::builder().replicas(2).build()?);
    of_any_kind: Arc::new(DefaultStrategy::new()) as Arc<dyn Strategy>;
    handle: DefaultStrategy::new().handle();
}

/// The second time there is nothing left to train. In a process of its own: the program seeds
/// burn's generator, from which other tests draw meanwhile.
#[test]
fn it_runs_twice_under_each_strategy() {
    if !hostile::alone::is_alone(module_path!(), "it_runs_twice_under_each_strategy") {
        return;
    }
    for (name, program) in PROGRAMS {
        let steps = steps_of_two_runs(*program);
        assert_eq!(steps, [230, 230], "{name}");
    }
}

fn steps_of_two_runs(program: fn(&str) -> Result<()>) -> [u64; 2] {
    let temporary = tempfile::tempdir().unwrap();
    let folder = temporary.path().join("digits");
    let folder = folder.to_str().unwrap();
    [(); 2].map(|()| {
        program(folder).unwrap();
        let (_, checkpoint) = checkpoint::load_latest(folder).unwrap().found.unwrap();
        checkpoint.metadata.step
    })
}

/// The lines between the strategy and the end of the program, without their indents.
fn lines(text: &str) -> Vec<String> {
    let lines = text.lines().map(str::trim);
    let lines = lines.skip_while(|line| !line.starts_with("let (digits, batching)"));
    let lines = lines.take_while(|line| *line != "Ok(())");
    let lines = lines.filter(|line| !line.starts_with("let folder ="));
    lines
        .filter(|line| !line.is_empty())
        .map(str::to_string)
        .collect()
}

#[test]
fn it_is_the_program_of_the_page() {
    let page = include_str!("../../../docs/quick-start.md");
    let page = &page[page.find("let strategy = MultiWorker").unwrap()..];
    let own = lines(include_str!("quick_start.rs"));
    assert!(own.len() > 20, "{own:?}");
    assert_eq!(own, lines(page));
}

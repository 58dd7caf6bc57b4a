//! Trains on handwritten digits that are part of the library, on one process or many, and resumes
//! where it was killed.

use burn::nn::{Linear, LinearConfig};
use distribute::checkpoint;
use distribute::collectives::control::security::{Security, TlsIdentity, Token};
use distribute::prelude::*;

/// Certificates of this host, if the program is started with their folder.
fn security() -> Result<Security> {
    let Some(folder) = std::env::args().nth(1) else {
        return Ok(Security::default());
    };
    let file = |name: &str| format!("{folder}/{name}");
    let identity =
        TlsIdentity::from_files(file("../ca.pem"), file("certificate.pem"), file("key.pem"))?;
    let token = Token::from_env("DISTRIBUTE_JOB_TOKEN")?; // `launch` sets it
    Ok(Security::default().tls(identity).token(token))
}

fn forward(model: &Linear, images: Tensor<4>) -> Tensor<2> {
    model.forward(images.flatten::<2>(1, 3))
}

fn main() -> Result<()> {
    let strategy = MultiWorkerMirroredStrategy::builder()
        .security(security()?)
        .build()?;
    let (digits, batching) = (Digits::open()?, Batching::global(64));
    let train = strategy.distribute_dataset(digits.train()?, batching.shuffle(42))?;
    let test = strategy.distribute_dataset(digits.test()?, batching)?;
    let mut state = strategy.scope(|device| {
        device.seed(42);
        TrainState::new(LinearConfig::new(64, 10).init(device), Adam::new(1e-2))
    })?;

    let folder = "checkpoints/digits";
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

//! Every batch is trained on once, however many there are.

use rstest::rstest;

use crate::common::{
    Optimizer, assert_close, assert_equal_replicas, batches, custom, expected, loader, mirrored,
    train,
};

#[rstest]
fn the_last_step_is_the_mean_over_the_batches_there_are(
    #[values(2, 3, 4)] replicas: usize,
    // 1 to 8 batches of 3 rows; the last one of 10 and 22 rows has a single row.
    #[values(2, 3, 10, 15, 22)] rows: usize,
    #[values(Optimizer::Sgd, Optimizer::Adam)] optimizer: Optimizer,
) {
    let all = batches(rows, 3);
    let steps: Vec<_> = all.chunks(replicas).map(|step| vec![step]).collect();
    let updates = steps.len();
    let wanted = expected(steps, optimizer);
    let strategy = custom(mirrored(replicas));
    let (found, spy) = train(loader(rows, 3), strategy, optimizer, |it| it);
    assert_close(&found, &wanted);
    assert_equal_replicas(&spy, replicas, updates);
}

#[test]
fn without_data_nothing_is_trained() {
    let wanted = expected(Vec::new(), Optimizer::Sgd);
    let strategy = custom(mirrored(2));
    let (found, spy) = train(loader(0, 3), strategy, Optimizer::Sgd, |it| {
        it.num_epochs(2).grads_accumulation(2)
    });
    assert_eq!(found, wanted);
    assert_equal_replicas(&spy, 2, 0);
}

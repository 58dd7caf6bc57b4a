//! Machines without a GPU are told so by an error, before burn is asked.

use distribute_core::collectives::CollectiveError;
use distribute_core::{Error, MirroredStrategy, MultiWorkerMirroredStrategy};
use distribute_cuda::{cuda, parse};

/// Also on machines with GPUs: none has 1,000.
#[test]
fn a_gpu_that_is_not_there_is_an_error() {
    let gpu = cuda(4000);
    assert_eq!(
        (gpu.to_string(), parse("cuda:4000").unwrap()),
        ("cuda:4000".to_string(), gpu)
    );
    let mirrored = MirroredStrategy::builder().devices([gpu]).build().map(drop);
    let workers = MultiWorkerMirroredStrategy::builder()
        .cluster(None)
        .devices([gpu]);
    for outcome in [mirrored, workers.build().map(drop)] {
        let error = outcome.unwrap_err();
        let Error::Collective(CollectiveError::BackendUnavailable {
            backend,
            reason,
            searched,
        }) = &error
        else {
            panic!("{error}");
        };
        assert_eq!(backend, "CUDA");
        assert!(
            reason.contains("GPU 4000") || !searched.is_empty(),
            "{error}"
        );
    }
}

//! What is on the ways that the pictures show.

use super::{Mode, Node, Picture, Row};

pub const PICTURES: [Picture; 2] = [
    Picture {
        path: "docs/way-of-a-gradient.svg",
        title: "The way of a gradient",
        rows: GRADIENT,
    },
    Picture {
        path: "docs/way-of-a-batch.svg",
        title: "The way of a batch",
        rows: BATCH,
    },
];

const GRADIENT: &[Row] = &[
    &[Node {
        columns: (0, 9),
        mode: Mode::Every,
        name: "ReplicaContext::gradient",
        files: &["distribute-core/src/replica/gradients.rs"],
        note: "A step asks for the gradients of its loss.",
    }],
    &[Node {
        columns: (0, 9),
        mode: Mode::Every,
        name: "Gradients::compute",
        files: &["distribute-core/src/gradients/mod.rs"],
        note: "burn's backward pass. One gradient per parameter, in the order in which the \
                   model declares them; a gradient stays where burn has put it:",
    }],
    &[
        Node {
            columns: (0, 3),
            mode: Mode::Host,
            name: "Residence::Host",
            files: &["distribute-core/src/gradients/residence.rs"],
            note: "in burn's own buffer, which is reduced in place",
        },
        Node {
            columns: (4, 6),
            mode: Mode::Devices,
            name: "Residence::Device",
            files: &["distribute-core/src/gradients/residence.rs"],
            note: "in the memory of a GPU",
        },
        Node {
            columns: (7, 9),
            mode: Mode::Captured,
            name: "Residence::Captured",
            files: &["distribute-core/src/gradients/residence.rs"],
            note: "a tensor of a graph, without a value",
        },
    ],
    &[Node {
        columns: (0, 9),
        mode: Mode::Every,
        name: "TrainState::apply_gradients",
        files: &["distribute-core/src/train_state/apply.rs"],
        note: "Adds micro-batches up. The state's Placement, which says where its variables \
                   are, does the rest:",
    }],
    &[
        Node {
            columns: (0, 5),
            mode: Mode::Every,
            name: "Placement for Mirrored, Central",
            files: &["distribute-core/src/train_state/apply.rs"],
            note: "Mirrored: every replica updates its copy. Central: replica 0 updates the only \
                   one. It asks its Peers, the way to the other replicas, for the sum (one \
                   replica, Alone, has it already):",
        },
        Node {
            columns: (6, 7),
            mode: Mode::Captured,
            name: "Placement for Captured",
            files: &["distribute-core/src/train_state/traced.rs"],
            note: "a step that is compiled",
        },
        Node {
            columns: (8, 9),
            mode: Mode::Remote,
            name: "Placement for Remote",
            files: &["distribute-core/src/train_state/remote.rs"],
            note: "parameter servers",
        },
    ],
    &[
        Node {
            columns: (0, 3),
            mode: Mode::Host,
            name: "Peers for HostPeers",
            files: &[
                "distribute-core/src/replica/host.rs",
                "distribute-core/src/gradients/buffers.rs",
            ],
            note: "Takes the buffers out, with a flag for each parameter that has a gradient; \
                   its Link says who sums them:",
        },
        Node {
            columns: (4, 5),
            mode: Mode::Devices,
            name: "Peers for Devices",
            files: &["distribute-core/src/replica/devices.rs"],
            note: "only the flags go through host memory",
        },
        Node {
            columns: (6, 7),
            mode: Mode::Captured,
            name: "Peers for Captured",
            files: &["distribute-core/src/replica/captured.rs"],
            note: "all gradients as one operation",
        },
        Node {
            columns: (8, 9),
            mode: Mode::Remote,
            name: "RemoteState::push",
            files: &["distribute-core/src/remote.rs"],
            note: "a trait of a store, which distribute-ps has",
        },
    ],
    &[
        Node {
            columns: (0, 1),
            mode: Mode::Host,
            name: "Link for Threads",
            files: &["distribute-core/src/replica/threads.rs"],
            note: "replicas of one process",
        },
        Node {
            columns: (2, 3),
            mode: Mode::Host,
            name: "Link for Workers",
            files: &["distribute-core/src/replica/workers.rs"],
            note: "and of several, in packs",
        },
        Node {
            columns: (4, 5),
            mode: Mode::Devices,
            name: "DeviceReducer::all_reduce",
            files: &["distribute-core/src/device/reducers.rs"],
            note: "by NCCL, or burn's own collective",
        },
        Node {
            columns: (6, 7),
            mode: Mode::Captured,
            name: "Trace::all_reduce",
            files: &["distribute-core/src/trace/capture.rs"],
            note: "one operation of the graph; StableHLO when it is compiled",
        },
        Node {
            columns: (8, 9),
            mode: Mode::Remote,
            name: "VariableClient::push",
            files: &["distribute-ps/src/client/push.rs"],
            note: "cut over the servers",
        },
    ],
    &[
        Node {
            columns: (0, 1),
            mode: Mode::Host,
            name: "CrossDeviceOps::all_reduce",
            files: &["distribute-core/src/cross_device/mod.rs"],
            note: "DirectAllReduce, or the user's",
        },
        Node {
            columns: (2, 3),
            mode: Mode::Host,
            name: "WorkerGroup::communicator",
            files: &["distribute-core/src/workers/mod.rs"],
            note: "replica 0 speaks for its process",
        },
        Node {
            columns: (8, 9),
            mode: Mode::Remote,
            name: "Shard::plan, commit",
            files: &["distribute-ps/src/server/shard.rs"],
            note: "the server's optimizer updates the variable",
        },
    ],
    &[
        Node {
            columns: (0, 3),
            mode: Mode::Host,
            name: "Communicator::all_reduce",
            files: &["distribute-collectives/src/communicator.rs"],
            note: "Ranks are threads, or processes over shared memory, gRPC or MPI.",
        },
        Node {
            columns: (8, 9),
            mode: Mode::Remote,
            name: "TrainState::refresh",
            files: &["distribute-core/src/train_state/remote.rs"],
            note: "the next run takes the new values over",
        },
    ],
    &[Node {
        columns: (0, 5),
        mode: Mode::Every,
        name: "Gradients::put_buffers, put_tensors",
        files: &["distribute-core/src/gradients/buffers.rs"],
        note: "Back into their places; the parameters of one pack while the next one \
                   travels.",
    }],
    &[Node {
        columns: (0, 7),
        mode: Mode::Every,
        name: "Update::apply",
        files: &["distribute-core/src/train_state/update.rs"],
        note: "Parameter by parameter. If they are clipped, all at once after the last has \
                   arrived.",
    }],
    &[Node {
        columns: (0, 7),
        mode: Mode::Every,
        name: "Optimizer::update",
        files: &["distribute-core/src/optim/mod.rs"],
        note: "Adam, AdamW and SGD as functions of tensors; in a step that is captured they \
                   become its operations.",
    }],
];

const BATCH: &[Row] = &[
    &[
        Node {
            columns: (0, 3),
            mode: Mode::Every,
            name: "Examples",
            files: &["crates/distribute-readers/src/examples.rs"],
            note: "Files (IDX, CSV, NumPy, folders of images) as arrays in host memory.",
        },
        Node {
            columns: (4, 6),
            mode: Mode::Every,
            name: "FnDataset",
            files: &["distribute-data/src/dataset.rs"],
            note: "Examples that a function makes.",
        },
        Node {
            columns: (7, 9),
            mode: Mode::Every,
            name: "DistributedFunction",
            files: &["distribute-data/src/from_function.rs"],
            note: "Iterators of batches, one per worker or replica.",
        },
    ],
    &[Node {
        columns: (0, 6),
        mode: Mode::Every,
        name: "Dataset",
        files: &[
            "distribute-data/src/dataset.rs",
            "distribute-data/src/dataset_arrays.rs",
        ],
        note: "Examples by index; makes a batch of tensors from a list of them.",
    }],
    &[Node {
        columns: (0, 6),
        mode: Mode::Every,
        name: "distribute_dataset, DistributedDataset",
        files: &[
            "distribute-data/src/distribute.rs",
            "distribute-data/src/worker_shard.rs",
            "distribute-data/src/worker_agreement.rs",
        ],
        note: "Cuts a dataset as Batching says: the size of the global batch, this worker's \
                   examples, and as many steps on every worker.",
    }],
    &[
        Node {
            columns: (0, 6),
            mode: Mode::Every,
            name: "Epoch",
            files: &[
                "distribute-data/src/distribute_epoch.rs",
                "distribute-data/src/split.rs",
            ],
            note: "One pass, in an order of its own. Every replica's part of a global batch \
                   becomes tensors on its device.",
        },
        Node {
            columns: (7, 9),
            mode: Mode::Every,
            name: "Steps",
            files: &["distribute-data/src/from_function.rs"],
            note: "One batch per replica and step.",
        },
    ],
    &[Node {
        columns: (0, 9),
        mode: Mode::Every,
        name: "Prefetch",
        files: &["distribute-data/src/prefetch.rs"],
        note: "A thread makes the batches before they are asked for.",
    }],
    &[Node {
        columns: (0, 9),
        mode: Mode::Every,
        name: "PerReplica::of_global_batch",
        files: &["distribute-core/src/values.rs"],
        note: "A batch: one part per replica of this process. It knows the size of its \
                   global batch.",
    }],
    &[Node {
        columns: (0, 9),
        mode: Mode::Every,
        name: "StrategyExt::run",
        files: &["distribute-core/src/strategy/ext.rs"],
        note: "Called by a loop of one's own or by Fit. The strategy says how the step \
                   runs:",
    }],
    &[
        Node {
            columns: (0, 4),
            mode: Mode::Host,
            name: "StepArgs::split",
            files: &["distribute-core/src/step/args.rs"],
            note: "Each replica's part, and what is known of the batch (BatchFacts).",
        },
        Node {
            columns: (5, 9),
            mode: Mode::Captured,
            name: "Call::enter_batch",
            files: &["distribute-core/src/step/call.rs"],
            note: "The parts become inputs of a program.",
        },
    ],
    &[
        Node {
            columns: (0, 4),
            mode: Mode::Host,
            name: "ReplicaThreads::run",
            files: &["distribute-core/src/strategy/replica_threads.rs"],
            note: "The closure runs on the thread of every replica; of a single replica, on the \
                   caller's.",
        },
        Node {
            columns: (5, 9),
            mode: Mode::Captured,
            name: "compiled::find, execute",
            files: &["distribute-core/src/step/compiled.rs"],
            note: "The closure is captured and compiled when there is no program for these \
                   shapes; then the program runs on all devices.",
        },
    ],
    &[Node {
        columns: (0, 9),
        mode: Mode::Every,
        name: "average_loss",
        files: &[
            "distribute-data/src/loss/scaling.rs",
            "distribute-core/src/loss.rs",
            "distribute-core/src/scope/notes.rs",
        ],
        note: "The closure divides the sum of its losses by the size of the global batch, \
                   which the notes of its step have, and notes the divisor there.",
    }],
    &[
        Node {
            columns: (0, 4),
            mode: Mode::Every,
            name: "ReplicaContext::gradient",
            files: &["distribute-core/src/replica/gradients.rs"],
            note: "The way of a gradient begins.",
        },
        Node {
            columns: (5, 9),
            mode: Mode::Every,
            name: "train_on",
            files: &[
                "crates/distribute-fit/src/objective.rs",
                "crates/distribute-fit/src/meter.rs",
            ],
            note: "Fit takes the divisor, so that the loss of an epoch is the mean over its \
                   examples.",
        },
    ],
];

//! [`Communicator`](crate::Communicator) for types that hold another one and add nothing to its
//! calls.

/// Implements [`Communicator`](crate::Communicator) for a type by calling the communicator that it
/// holds. The patterns cover all values of the type; each binds the held communicator to the name
/// before `in`.
///
/// ```text
/// forward_communicator!(Endpoint, inner in [Endpoint::Threads(inner), Endpoint::Mpi(inner)]);
/// ```
macro_rules! forward_communicator {
    ($type:ty, $inner:ident in [$($pattern:pat),+ $(,)?]) => {
        impl $crate::Communicator for $type {
            fn rank(&self) -> usize {
                match self { $($pattern => $inner.rank(),)+ }
            }

            fn world_size(&self) -> usize {
                match self { $($pattern => $inner.world_size(),)+ }
            }

            fn abort_handle(&self) -> $crate::AbortHandle {
                match self { $($pattern => $inner.abort_handle(),)+ }
            }

            $crate::forward::forward_operations!([$($pattern),+] => $inner);
        }
    };
}

/// The operations of a [`Communicator`](crate::Communicator), and its description, forwarded to
/// `$inner`, which may use what the patterns bind.
macro_rules! forward_operations {
    ([$($pattern:pat),+] => $inner:expr) => {
        fn all_reduce(
            &mut self,
            op: $crate::ReduceOp,
            buffers: &mut [$crate::Buffer<'_>],
        ) -> $crate::Result<()> {
            match self { $($pattern => $inner.all_reduce(op, buffers),)+ }
        }

        fn reduce_scatter(
            &mut self,
            op: $crate::ReduceOp,
            buffer: $crate::Buffer<'_>,
        ) -> $crate::Result<::std::ops::Range<usize>> {
            match self { $($pattern => $inner.reduce_scatter(op, buffer),)+ }
        }

        fn all_gather_into(
            &mut self,
            dtype: $crate::DType,
            input: &[u8],
            output: &mut dyn $crate::GatherTarget,
        ) -> $crate::Result<()> {
            match self { $($pattern => $inner.all_gather_into(dtype, input, output),)+ }
        }

        fn broadcast(
            &mut self,
            root: usize,
            buffers: &mut [$crate::Buffer<'_>],
        ) -> $crate::Result<()> {
            match self { $($pattern => $inner.broadcast(root, buffers),)+ }
        }

        fn reduce(
            &mut self,
            op: $crate::ReduceOp,
            root: usize,
            buffers: &mut [$crate::Buffer<'_>],
        ) -> $crate::Result<()> {
            match self { $($pattern => $inner.reduce(op, root, buffers),)+ }
        }

        fn send(&mut self, to: usize, buffer: $crate::Buffer<'_>) -> $crate::Result<()> {
            match self { $($pattern => $inner.send(to, buffer),)+ }
        }

        fn recv(&mut self, from: usize, buffer: $crate::Buffer<'_>) -> $crate::Result<()> {
            match self { $($pattern => $inner.recv(from, buffer),)+ }
        }

        fn barrier(&mut self) -> $crate::Result<()> {
            match self { $($pattern => $inner.barrier(),)+ }
        }

        fn describe(&self) -> $crate::Description {
            match self { $($pattern => $inner.describe(),)+ }
        }
    };
}

pub(crate) use forward_communicator;
pub(crate) use forward_operations;

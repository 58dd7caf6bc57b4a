//! A communicator over any transport that sends segments.

use std::ops::Range;

use crate::algorithm::{
    Exchange, chain, direct_exchange, gather, halving_doubling, hierarchical, ordered,
    point_to_point, ring,
};
use crate::auto::{self, Topology};
use crate::buffer::{Buffer, DType, Element, with_dtype};
use crate::communicator::{AbortHandle, Communicator, Description, GatherTarget, chunk_range};
use crate::error::{CollectiveError, Result};
use crate::gathering;
use crate::header::OperationHeader;
use crate::link_cost::LinkCost;
use crate::operation::OperationKind;
use crate::options::{Algorithm, GroupOptions, Order, WireType};
use crate::reduce::ReduceOp;
use crate::transport::Transport;

/// Makes a [`Communicator`] of a [`Transport`], with the algorithms of this crate.
///
/// Memory of its own: one segment in the accumulator's type. It is kept between calls.
pub struct TransportCommunicator<T: Transport> {
    transport: T,
    options: GroupOptions,
    topology: Topology,
    scratch: Vec<u64>,
    sizes: Vec<usize>,
}

impl<T: Transport> TransportCommunicator<T> {
    /// Wraps a transport.
    ///
    /// # Errors
    /// [`CollectiveError::InvalidOption`] when the options ask for an algorithm that messages
    /// cannot carry out, or for segments that the transport cannot carry.
    pub fn new(transport: T, options: GroupOptions) -> Result<Self> {
        Self::check_options(&options)?;
        options.check_segment(transport.max_segment_bytes(), transport.name())?;
        Ok(TransportCommunicator {
            transport,
            options,
            topology: Topology::default(),
            scratch: Vec::new(),
            sizes: Vec::new(),
        })
    }

    /// Refuses options that messages cannot carry out.
    pub(crate) fn check_options(options: &GroupOptions) -> Result<()> {
        options.check_wire()?;
        let what = match options.get_algorithm() {
            Algorithm::Direct => "direct needs shared memory; use ring or auto",
            Algorithm::Hierarchical { ranks_per_host: 0 } => "a host has at least 1 rank",
            _ => return Ok(()),
        };
        let what = what.to_string();
        Err(CollectiveError::InvalidOption { what })
    }

    /// Measures what the links cost; all ranks must call it together. [`Algorithm::Auto`] decides
    /// from it afterwards, but never between algorithms that would give other bits. Takes 26
    /// operations, 10 of them of 1 MiB.
    ///
    /// # Errors
    /// What an all-reduce returns.
    pub fn measure_links(&mut self) -> Result<LinkCost> {
        let cost = LinkCost::measure(self, |this, algorithm, buffers| {
            let options = this.options.clone();
            // Segments of the size that suits the transport, whatever was asked for. In rank order:
            // what is measured decides between algorithms that keep it.
            this.options = GroupOptions::default()
                .generation(options.get_generation())
                .order(Order::Canonical)
                .algorithm(algorithm);
            let result = this.all_reduce(ReduceOp::Sum, buffers);
            this.options = options;
            result
        })?;
        self.topology.cost = cost;
        self.topology.is_measured = true;
        Ok(cost)
    }

    /// Takes the costs that are known already, or measures them.
    #[cfg(feature = "grpc")]
    pub(crate) fn decide(
        &mut self,
        known: Option<LinkCost>,
        ranks_per_host: Option<usize>,
    ) -> Result<LinkCost> {
        self.topology.ranks_per_host = ranks_per_host;
        match known {
            Some(cost) => {
                self.topology.cost = cost;
                self.topology.is_measured = true;
                Ok(cost)
            }
            None => self.measure_links(),
        }
    }

    #[cfg(feature = "nccl")]
    pub(crate) fn transport(&self) -> &T {
        &self.transport
    }

    /// Bytes of a segment of an operation over `bytes` bytes.
    fn segment_bytes(&self, bytes: usize) -> usize {
        self.options
            .get_segment_bytes()
            .unwrap_or(self.transport.segment_bytes_for(bytes))
            .max(1)
    }

    fn header(&self, kind: OperationKind) -> OperationHeader {
        OperationHeader::new(
            kind,
            self.options.get_generation(),
            self.transport.sequence(),
        )
    }

    /// Runs one operation between `begin` and `end`; see [`operate`].
    fn operate(
        &mut self,
        header: &OperationHeader,
        body: impl FnOnce(&mut Self) -> Result<()>,
    ) -> Result<()> {
        operate(self, |this| &mut this.transport, header, body)
    }

    fn exchange<'a, 'b>(
        &'a mut self,
        buffers: &'a mut [Buffer<'b>],
        op: ReduceOp,
        dtype: DType,
        wire: Option<WireType>,
    ) -> Exchange<'a, 'b> {
        let size = self.transport.world_size();
        let element_bytes = wire.map_or(dtype.size_bytes(), |_| WireType::SIZE_BYTES);
        // Partial sums of half types travel as `f32`, and must fit too.
        let partial_bytes = wire.map_or(dtype.accumulator_bytes(), |_| WireType::SIZE_BYTES);
        let most = self.transport.max_segment_bytes() / partial_bytes;
        let len: usize = buffers.iter().map(Buffer::len).sum();
        let segment_bytes = self.segment_bytes(len.saturating_mul(element_bytes));
        Exchange {
            segment: (segment_bytes / element_bytes).min(most).max(1),
            len,
            transport: &mut self.transport,
            buffers,
            op,
            divisor: size,
            stride: 1,
            size,
            wire,
            scratch: &mut self.scratch,
        }
    }

    /// The part of `all_gather` after all ranks have said the sizes of their inputs.
    fn gather(
        &mut self,
        dtype: DType,
        input: &[u8],
        sizes: &[usize],
        output: &mut dyn GatherTarget,
    ) -> Result<()> {
        let output = gathering::memory(&mut self.transport, dtype, sizes, output)?;
        let start = |rank: usize| sizes[..rank].iter().sum::<usize>();
        let chunk = |rank: usize| start(rank)..start(rank) + sizes[rank];
        output[chunk(self.transport.rank())].copy_from_slice(input);
        let buffers = &mut [Buffer::U8(output)];
        let mut exchange = self.exchange(buffers, ReduceOp::Sum, DType::U8, None);
        ring::all_gather::<u8>(&mut exchange, &chunk)
    }

    fn all_reduce_typed<E: Element>(
        &mut self,
        op: ReduceOp,
        buffers: &mut [Buffer<'_>],
    ) -> Result<()> {
        let (wanted, order) = (self.options.get_algorithm(), self.options.get_order());
        let topology = self.topology;
        let wire = self.options.wire_of(Some(E::DTYPE));
        let mut exchange = self.exchange(buffers, op, E::DTYPE, wire);
        let bytes = exchange.len * wire.map_or(size_of::<E>(), |_| WireType::SIZE_BYTES);
        let selection = auto::select(wanted, order, exchange.size, bytes, &topology);
        match (selection.algorithm, selection.order) {
            // Partial results that are rounded on the wire would depend on the algorithm.
            (Algorithm::Chain | Algorithm::Hierarchical { .. }, Order::Canonical)
                if wire.is_some() =>
            {
                ordered::all_reduce::<E>(&mut exchange)
            }
            (Algorithm::Chain, _) | (Algorithm::Hierarchical { .. }, Order::Canonical) => {
                chain::all_reduce::<E>(&mut exchange)
            }
            (Algorithm::DirectExchange, _) => direct_exchange::all_reduce::<E>(&mut exchange),
            (_, Order::Canonical) => ordered::all_reduce::<E>(&mut exchange),
            (Algorithm::HalvingDoubling, _) => halving_doubling::all_reduce::<E>(&mut exchange),
            (Algorithm::Hierarchical { ranks_per_host }, _) => {
                hierarchical::all_reduce::<E>(&mut exchange, ranks_per_host)
            }
            (Algorithm::Auto | Algorithm::Direct | Algorithm::Ring, _) => {
                ring::all_reduce::<E>(&mut exchange)
            }
        }
    }
}

/// Runs one operation of an endpoint over a transport. What all ranks together refuse was an
/// operation: it has its number.
pub(crate) fn operate<C, T: Transport>(
    endpoint: &mut C,
    transport: impl Fn(&mut C) -> &mut T,
    header: &OperationHeader,
    body: impl FnOnce(&mut C) -> Result<()>,
) -> Result<()> {
    let over = transport(endpoint);
    let refused = header.check_root(over.rank(), over.world_size());
    let begun = over.begin(header);
    let result = match refused {
        Ok(()) => begun.and_then(|()| body(endpoint)),
        Err(_) => begun,
    };
    transport(endpoint).end(header, result).and(refused)
}

/// Refuses a peer of a point-to-point call that does not exist.
pub(crate) fn check_peer(
    rank: usize,
    world_size: usize,
    op: OperationKind,
    peer: usize,
) -> Result<()> {
    let what = if peer >= world_size {
        let name = match op {
            OperationKind::Send => "receiver",
            _ => "sender",
        };
        format!("the {name} is rank {peer}, but the group has {world_size} ranks")
    } else if peer == rank {
        "a rank cannot send to itself".to_string()
    } else {
        return Ok(());
    };
    Err(CollectiveError::InvalidArgument { rank, op, what })
}

impl<T: Transport> Communicator for TransportCommunicator<T> {
    fn rank(&self) -> usize {
        self.transport.rank()
    }

    fn world_size(&self) -> usize {
        self.transport.world_size()
    }

    fn all_reduce(&mut self, op: ReduceOp, buffers: &mut [Buffer<'_>]) -> Result<()> {
        let header = self.header(OperationKind::AllReduce).with_op(op);
        let header = header.with_buffers(self.rank(), buffers)?;
        let header = header.with_wire(self.options.wire_of(header.dtype));
        self.operate(&header, |this| match header.dtype {
            Some(dtype) => with_dtype!(dtype, E => this.all_reduce_typed::<E>(op, buffers)),
            None => Ok(()),
        })
    }

    fn reduce_scatter(&mut self, op: ReduceOp, mut buffer: Buffer<'_>) -> Result<Range<usize>> {
        let own = chunk_range(buffer.len(), self.world_size(), self.rank());
        let dtype = buffer.dtype();
        let buffers = &mut [buffer.reborrow()];
        let header = self.header(OperationKind::ReduceScatter).with_op(op);
        let wire = self.options.wire_of(Some(dtype));
        let header = header.with_buffers(self.rank(), buffers)?.with_wire(wire);
        self.operate(&header, |this| {
            let mut exchange = this.exchange(buffers, op, dtype, wire);
            with_dtype!(dtype, E => ordered::reduce_scatter::<E>(&mut exchange))
        })?;
        Ok(own)
    }

    fn all_gather_into(
        &mut self,
        dtype: DType,
        input: &[u8],
        output: &mut dyn GatherTarget,
    ) -> Result<()> {
        gathering::check_input(self.rank(), dtype, input)?;
        let header = self.header(OperationKind::AllGather).with_dtype(dtype);
        self.operate(&header, |this| {
            let mut sizes = std::mem::take(&mut this.sizes);
            let result = gather::exchange_sizes(&mut this.transport, input.len(), &mut sizes)
                .and_then(|()| this.gather(dtype, input, &sizes, output));
            this.sizes = sizes;
            result
        })
    }

    fn broadcast(&mut self, root: usize, buffers: &mut [Buffer<'_>]) -> Result<()> {
        let header = self.header(OperationKind::Broadcast).with_root(root);
        let header = header.with_buffers(self.rank(), buffers)?;
        self.operate(&header, |this| {
            let Some(dtype) = header.dtype else {
                return Ok(());
            };
            let mut exchange = this.exchange(buffers, ReduceOp::Sum, dtype, None);
            with_dtype!(dtype, E => chain::broadcast::<E>(&mut exchange, root))
        })
    }

    fn reduce(&mut self, op: ReduceOp, root: usize, buffers: &mut [Buffer<'_>]) -> Result<()> {
        let header = self
            .header(OperationKind::Reduce)
            .with_op(op)
            .with_root(root);
        let header = header.with_buffers(self.rank(), buffers)?;
        let wire = self.options.wire_of(header.dtype);
        let header = header.with_wire(wire);
        let canonical = self.options.get_order() == Order::Canonical;
        self.operate(&header, |this| {
            let Some(dtype) = header.dtype else {
                return Ok(());
            };
            let mut exchange = this.exchange(buffers, op, dtype, wire);
            if canonical && wire.is_some() {
                return with_dtype!(dtype, E => direct_exchange::reduce::<E>(&mut exchange, root));
            }
            with_dtype!(dtype, E => chain::reduce::<E>(&mut exchange, root))
        })
    }

    fn send(&mut self, to: usize, buffer: Buffer<'_>) -> Result<()> {
        let segment_bytes = self.segment_bytes(buffer.as_bytes().len());
        send(
            &mut self.transport,
            self.options.get_generation(),
            to,
            &buffer,
            segment_bytes,
        )
    }

    fn recv(&mut self, from: usize, mut buffer: Buffer<'_>) -> Result<()> {
        let segment_bytes = self.segment_bytes(buffer.as_bytes().len());
        recv(
            &mut self.transport,
            self.options.get_generation(),
            from,
            &mut buffer,
            segment_bytes,
        )
    }

    fn barrier(&mut self) -> Result<()> {
        self.operate(&self.header(OperationKind::Barrier), |_| Ok(()))
    }

    fn abort_handle(&self) -> AbortHandle {
        self.transport.abort_handle()
    }

    fn describe(&self) -> Description {
        let options = &self.options;
        let reason = match options.get_algorithm() {
            Algorithm::Auto => {
                auto::explain(options.get_order(), self.world_size(), &self.topology)
            }
            _ => "asked for by name".to_string(),
        };
        let reason = match options.get_wire() {
            Some(wire) => format!("{reason}; f32 is reduced through {wire}"),
            None => reason,
        };
        Description {
            group: options.get_name().to_string(),
            generation: options.get_generation(),
            world_size: self.world_size(),
            algorithm: options.get_algorithm(),
            transport: self.transport.name().to_string(),
            order: options.get_order(),
            reason,
        }
    }
}

/// [`Communicator::send`] over any transport.
pub(crate) fn send(
    transport: &mut dyn Transport,
    generation: u64,
    to: usize,
    buffer: &Buffer<'_>,
    segment_bytes: usize,
) -> Result<()> {
    check_peer(
        transport.rank(),
        transport.world_size(),
        OperationKind::Send,
        to,
    )?;
    let header = OperationHeader::new(OperationKind::Send, generation, transport.sequence());
    let result = transport
        .begin(&header)
        .and_then(|()| point_to_point::send(transport, to, buffer, segment_bytes));
    transport.end(&header, result)
}

/// [`Communicator::recv`] over any transport.
pub(crate) fn recv(
    transport: &mut dyn Transport,
    generation: u64,
    from: usize,
    buffer: &mut Buffer<'_>,
    segment_bytes: usize,
) -> Result<()> {
    check_peer(
        transport.rank(),
        transport.world_size(),
        OperationKind::Recv,
        from,
    )?;
    let header = OperationHeader::new(OperationKind::Recv, generation, transport.sequence());
    let result = transport
        .begin(&header)
        .and_then(|()| point_to_point::recv(transport, from, buffer, segment_bytes));
    transport.end(&header, result)
}

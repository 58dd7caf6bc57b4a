//! A communicator over any transport that sends segments.

use std::ops::Range;

use crate::algorithm::{
    Exchange, broadcast, direct_exchange, gather, halving_doubling, hierarchical, ordered,
    point_to_point, ring,
};
use crate::auto::{self, Topology};
use crate::buffer::{Buffer, DType, Element, with_dtype};
use crate::communicator::{AbortHandle, Communicator, Description, GatherTarget};
use crate::engine::{Engine, Member};
use crate::error::{CollectiveError, Result};
use crate::gathering;
use crate::header::OperationHeader;
use crate::link_cost::{ALL_TO_ALL_MAX, LinkCost};
use crate::operation::OperationKind;
use crate::options::{Algorithm, GroupOptions, Order, WireType};
use crate::pieces;
use crate::reduce::ReduceOp;
use crate::transport::Transport;

/// Makes a [`Communicator`] of a [`Transport`], with the algorithms of this crate.
///
/// Memory of its own: a segment for each level of the [`tree`](crate::tree) over the ranks, of at
/// least the accumulator's type. It is kept between calls.
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
        let what = match options.algorithm {
            Algorithm::Direct => "direct needs shared memory; use ring or auto",
            Algorithm::Hierarchical { ranks_per_host: 0 } => "a host has at least 1 rank",
            _ => return Ok(()),
        };
        let what = what.to_string();
        Err(CollectiveError::InvalidOption { what })
    }

    /// Measures what the links cost; all ranks must call it together. [`Algorithm::Auto`] decides
    /// from it afterwards, but never between algorithms that would give other bits. On fast links
    /// it takes some milliseconds, on any other about half a second and some steps: the bytes that
    /// are sent grow only as long as that is not used up. In a group of more than 64 ranks there is
    /// nothing to decide: nothing is measured, and the result is [`LinkCost::default`].
    ///
    /// # Errors
    /// What an all-reduce returns.
    pub fn measure_links(&mut self) -> Result<LinkCost> {
        if self.transport.world_size() > ALL_TO_ALL_MAX {
            return Ok(LinkCost::default());
        }
        let cost = LinkCost::measure(self, |this, algorithm, op, buffers| {
            let options = this.options.clone();
            // Segments of the size that suits the transport, whatever was asked for. In canonical
            // order: what is measured decides between algorithms that keep it.
            this.options = GroupOptions::default()
                .generation(options.generation)
                .order(Order::Canonical)
                .algorithm(algorithm);
            let result = this.all_reduce(op, buffers);
            this.options = options;
            result
        })?;
        (self.topology.cost, self.topology.is_measured) = (cost, true);
        Ok(cost)
    }

    /// Takes the costs that are known already.
    #[cfg(feature = "grpc")]
    pub(crate) fn know_links(&mut self, cost: LinkCost) {
        (self.topology.cost, self.topology.is_measured) = (cost, true);
    }

    /// Ranks per host, when each host has the same number.
    #[cfg(feature = "grpc")]
    pub(crate) fn know_hosts(&mut self, ranks_per_host: Option<usize>) {
        self.topology.ranks_per_host = ranks_per_host;
    }

    #[cfg(all(test, feature = "grpc"))]
    pub(crate) fn transport_mut(&mut self) -> &mut T {
        &mut self.transport
    }

    #[cfg(any(test, feature = "nccl"))]
    pub(crate) fn transport(&self) -> &T {
        &self.transport
    }

    /// The operation that the header describes, over these buffers.
    fn exchange<'a, 'b>(
        &'a mut self,
        header: &OperationHeader,
        dtype: DType,
        buffers: &'a mut [Buffer<'b>],
    ) -> Exchange<'a, 'b> {
        let (size, wire) = (self.transport.world_size(), header.wire());
        let element_bytes = wire.map_or(dtype.size_bytes(), |_| WireType::SIZE_BYTES);
        let most = self.transport.max_segment_bytes() / element_bytes;
        let len = pieces::len(buffers);
        let bytes = len.saturating_mul(element_bytes);
        let segment_bytes = segment_bytes(&self.transport, self.options.segment_bytes, bytes);
        Exchange {
            segment: (segment_bytes / element_bytes).min(most).max(1),
            len,
            transport: &mut self.transport,
            buffers,
            op: header.op.unwrap_or(ReduceOp::Sum),
            divisor: size,
            first: 0,
            stride: 1,
            size,
            wire,
            scratch: &mut self.scratch,
        }
    }

    /// The part of `all_gather` after all ranks have said the sizes of their inputs.
    fn gather_inputs(
        &mut self,
        header: &OperationHeader,
        input: &[u8],
        output: &mut [u8],
        sizes: &[usize],
    ) -> Result<()> {
        let chunk = |rank: usize| gathering::chunk(sizes, rank);
        output[chunk(self.transport.rank())].copy_from_slice(input);
        let buffers = &mut [Buffer::U8(output)];
        let mut exchange = self.exchange(header, DType::U8, buffers);
        ring::all_gather::<u8>(&mut exchange, &chunk)
    }

    /// An all-reduce of the ranks of each part with each other. `parts` are numbers of ranks, of
    /// all ranks together.
    pub(crate) fn run_parts(
        &mut self,
        header: OperationHeader,
        parts: &[usize],
        buffers: &mut [Buffer<'_>],
    ) -> Result<()> {
        let header = header.with_wire(self.options.wire);
        let mut own = 0..0;
        for part in parts {
            own = own.end..own.end + part;
            if own.contains(&self.transport.rank()) {
                break;
            }
        }
        let run = |this: &mut Self| match header.dtype {
            Some(dtype) => with_dtype!(dtype, E => this.run_typed::<E>(&header, own, buffers)),
            None => Ok(()),
        };
        operate(self, |this| &mut this.transport, &header, run)
    }

    /// The part of an operation after all ranks have begun it; an all-reduce is one of the ranks
    /// `among`.
    fn run_typed<E: Element>(
        &mut self,
        header: &OperationHeader,
        among: Range<usize>,
        buffers: &mut [Buffer<'_>],
    ) -> Result<()> {
        let (wanted, order, topology) = (self.options.algorithm, self.options.order, self.topology);
        let mut exchange = self.exchange(header, E::DTYPE, buffers);
        (exchange.first, exchange.size) = (among.start, among.len());
        exchange.divisor = among.len();
        match (header.kind, header.root) {
            // A rank that is alone has the result already.
            _ if exchange.size < 2 => Ok(()),
            (OperationKind::AllReduce, _) => {
                all_reduce::<E>(&mut exchange, wanted, order, &topology)
            }
            (OperationKind::ReduceScatter, _) => ordered::reduce_scatter::<E>(&mut exchange),
            (OperationKind::Broadcast, Some(root)) => {
                broadcast::broadcast::<E>(&mut exchange, root)
            }
            (OperationKind::Reduce, Some(root)) => ordered::reduce::<E>(&mut exchange, root),
            _ => Ok(()),
        }
    }
}

/// An all-reduce with the wanted algorithm, or with the one that suits it.
fn all_reduce<E: Element>(
    exchange: &mut Exchange<'_, '_>,
    wanted: Algorithm,
    order: Order,
    topology: &Topology,
) -> Result<()> {
    let bytes = exchange.len * exchange.element_bytes::<E>();
    let selection = auto::select(wanted, order, exchange.size, bytes, topology);
    match (selection.algorithm, selection.order) {
        (Algorithm::DirectExchange, _) => direct_exchange::all_reduce::<E>(exchange),
        (Algorithm::HalvingDoubling, _) => halving_doubling::all_reduce::<E>(exchange),
        (_, Order::Canonical) => ordered::all_reduce::<E>(exchange),
        (Algorithm::Hierarchical { ranks_per_host }, _) => {
            hierarchical::all_reduce::<E>(exchange, ranks_per_host)
        }
        (Algorithm::Auto | Algorithm::Direct | Algorithm::Ring, _) => {
            ring::all_reduce::<E>(exchange)
        }
    }
}

/// Bytes of a segment of an operation over `bytes` bytes: what was asked for, or what suits.
fn segment_bytes(transport: &dyn Transport, wanted: Option<usize>, bytes: usize) -> usize {
    let suits = || transport.segment_bytes_for(bytes);
    wanted.unwrap_or_else(suits).max(1)
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

/// [`Engine::transfer`] over any transport, in segments of the wanted size if there is one.
pub(crate) fn transfer(
    transport: &mut dyn Transport,
    wanted: Option<usize>,
    header: &OperationHeader,
    peer: usize,
    buffer: &mut Buffer<'_>,
) -> Result<()> {
    let segment =
        segment_bytes(transport, wanted, buffer.size_bytes()).min(transport.max_segment_bytes());
    let begun = transport.begin(header);
    let result = begun.and_then(|()| match header.kind {
        OperationKind::Send => point_to_point::send(transport, header, peer, buffer, segment),
        _ => point_to_point::recv(transport, header, peer, buffer, segment),
    });
    transport.end(header, result)
}

/// [`Engine::member`] over any transport.
pub(crate) fn member(transport: &dyn Transport, options: &GroupOptions) -> Member {
    Member {
        rank: transport.rank(),
        world_size: transport.world_size(),
        generation: options.generation,
        sequence: transport.sequence(),
    }
}

/// [`Engine::description`] of a group that works like this.
pub(crate) fn describe(
    transport: &dyn Transport,
    options: &GroupOptions,
    algorithm: Algorithm,
    reason: impl Into<String>,
) -> Description {
    Description {
        group: options.name.clone(),
        generation: options.generation,
        world_size: transport.world_size(),
        algorithm,
        transport: transport.name().to_string(),
        order: options.order,
        reason: reason.into(),
    }
}

impl<T: Transport> Engine for TransportCommunicator<T> {
    fn member(&self) -> Member {
        member(&self.transport, &self.options)
    }

    fn run(&mut self, header: OperationHeader, buffers: &mut [Buffer<'_>]) -> Result<()> {
        let all = [self.transport.world_size()];
        self.run_parts(header, &all, buffers)
    }

    fn gather(
        &mut self,
        header: OperationHeader,
        dtype: DType,
        input: &[u8],
        output: &mut dyn GatherTarget,
    ) -> Result<()> {
        let run = |this: &mut Self| {
            let mut sizes = std::mem::take(&mut this.sizes);
            let result = gather::exchange_sizes(&mut this.transport, input.len(), &mut sizes)
                .and_then(|()| gathering::memory(&mut this.transport, dtype, &sizes, output))
                .and_then(|output| this.gather_inputs(&header, input, output, &sizes));
            this.sizes = sizes;
            result
        };
        operate(self, |this| &mut this.transport, &header, run)
    }

    fn transfer(
        &mut self,
        header: OperationHeader,
        peer: usize,
        buffer: &mut Buffer<'_>,
    ) -> Result<()> {
        let segment = self.options.segment_bytes;
        transfer(&mut self.transport, segment, &header, peer, buffer)
    }

    fn abort_target(&self) -> AbortHandle {
        self.transport.abort_handle()
    }

    fn description(&self) -> Description {
        let options = &self.options;
        let reason = match options.algorithm {
            Algorithm::Auto => {
                auto::explain(options.order, self.transport.world_size(), &self.topology)
            }
            _ => "asked for by name".to_string(),
        };
        let reason = match options.wire {
            Some(wire) => format!("{reason}; f32 is reduced through {wire}"),
            None => reason,
        };
        describe(&self.transport, options, options.algorithm, reason)
    }
}

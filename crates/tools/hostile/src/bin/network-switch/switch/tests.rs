use super::*;

const MS: Duration = Duration::from_millis(1);

fn address(port: usize) -> [u8; 6] {
    [2, 0, 0, 0, 0, port as u8]
}

/// A frame of this many bytes, the last of which is a mark.
fn frame(from: usize, to: [u8; 6], bytes: usize, mark: u8) -> Vec<u8> {
    let mut frame = [to, address(from)].concat();
    frame.resize(bytes, 0);
    *frame.last_mut().unwrap() = mark;
    frame
}

/// A switch of three ports that knows who is where.
fn switch(link: &Link) -> Switch {
    let mut switch = Switch::new(3, 7);
    for port in 0..3 {
        switch.accept(port, &frame(port, [0xff; 6], 60, 0), Duration::ZERO);
    }
    while switch.arrived(Duration::ZERO).is_some() {}
    for (from, to) in [(0, 1), (1, 0)] {
        switch.set(from, to, link.clone());
    }
    switch
}

/// When marked frames arrive at port 1.
fn arrivals(switch: &mut Switch) -> Vec<(Duration, u8)> {
    let mut found = Vec::new();
    while let Some(at) = switch.next() {
        let before = at.checked_sub(Duration::from_nanos(1));
        assert_eq!(
            before.and_then(|now| switch.arrived(now)),
            None,
            "too early"
        );
        let (port, frame) = switch.arrived(at).unwrap();
        assert_eq!(port, 1);
        found.push((at, *frame.last().unwrap()));
    }
    found
}

#[test]
fn frames_go_where_their_receiver_is_and_to_all_where_it_is_not_known() {
    let mut switch = Switch::new(3, 1);
    let to = |switch: &mut Switch, frame: &[u8], from| {
        switch.accept(from, frame, Duration::ZERO);
        let arrived = std::iter::from_fn(|| switch.arrived(Duration::ZERO));
        arrived.map(|(port, _)| port).collect::<Vec<_>>()
    };
    assert_eq!(to(&mut switch, &frame(0, address(1), 60, 0), 0), [1, 2]);
    assert_eq!(to(&mut switch, &frame(1, address(0), 60, 0), 1), [0]);
    assert_eq!(to(&mut switch, &frame(0, address(1), 60, 0), 0), [1]);
    assert_eq!(to(&mut switch, &frame(0, [0xff; 6], 60, 0), 0), [1, 2]);
    assert_eq!(
        to(&mut switch, &frame(0, address(0), 60, 0), 0),
        [0; 0],
        "it is there"
    );
    // Its host has moved to another port.
    assert_eq!(to(&mut switch, &frame(1, address(0), 60, 0), 2), [0]);
    assert_eq!(to(&mut switch, &frame(0, address(1), 60, 0), 0), [2]);
    assert_eq!(to(&mut switch, &[1, 2, 3], 0), [0; 0], "no frame");
}

#[test]
fn a_delay_keeps_the_order_and_the_time_between_frames() {
    let mut switch = switch(&Link {
        delay: 20 * MS,
        ..Link::default()
    });
    for (at, mark) in [(1, 1), (1, 2), (4, 3)] {
        switch.accept(0, &frame(0, address(1), 60, mark), at * MS);
    }
    assert_eq!(
        arrivals(&mut switch),
        [(21 * MS, 1), (21 * MS, 2), (24 * MS, 3)]
    );
    // The other links are as they were.
    switch.accept(2, &frame(2, address(1), 60, 4), 30 * MS);
    assert_eq!(arrivals(&mut switch), [(30 * MS, 4)]);
}

#[test]
fn a_rate_sends_one_frame_after_the_other_and_drops_what_would_wait_too_long() {
    // 1000 bytes with what Ethernet adds take 1 ms.
    let mut switch = switch(&Link {
        delay: 5 * MS,
        bits_per_second: Some(8_000_000),
        queue: Some(3 * MS),
        ..Link::default()
    });
    for mark in 1..=9 {
        switch.accept(0, &frame(0, address(1), 976, mark), Duration::ZERO);
    }
    // The first is sent at once; three wait for 1 to 3 ms, which is as long as any may.
    let times: Vec<_> = (1..=4)
        .map(|mark| ((5 + u32::from(mark)) * MS, mark))
        .collect();
    assert_eq!(arrivals(&mut switch), times);
    let counters = Counters {
        passed: 4 + 1,
        dropped: 5,
        ..Counters::default()
    };
    assert_eq!(
        *switch.counters(0, 1),
        counters,
        "with the broadcast of the start"
    );
    // Later there is room again.
    switch.accept(0, &frame(0, address(1), 976, 10), 100 * MS);
    assert_eq!(arrivals(&mut switch), [(106 * MS, 10)]);
}

#[test]
fn a_loss_takes_its_part_of_the_frames_and_the_same_with_the_same_seed() {
    let lost = |loss: f64| {
        let mut switch = switch(&Link {
            loss,
            ..Link::default()
        });
        for number in 0..10_000 {
            switch.accept(0, &frame(0, address(1), 60, 1), number * MS);
            while switch.arrived(number * MS).is_some() {}
        }
        switch.counters(0, 1).lost
    };
    assert_eq!(lost(0.0), 0);
    assert_eq!(lost(1.0), 10_000);
    let some = lost(0.02);
    assert!((120..280).contains(&some), "{some} of 200");
    assert_eq!(lost(0.02), some);
}

#[test]
fn a_cut_lets_nothing_pass_and_ends() {
    let mut switch = switch(&Link::default());
    let cut = Link {
        is_cut: true,
        ..Link::default()
    };
    switch.set(0, 1, cut);
    switch.accept(0, &frame(0, address(1), 60, 1), MS);
    switch.accept(0, &frame(0, [0xff; 6], 60, 2), MS);
    assert_eq!(
        switch.arrived(MS).map(|(port, _)| port),
        Some(2),
        "the other one hears it"
    );
    assert_eq!(switch.arrived(MS), None);
    assert_eq!(switch.counters(0, 1).cut, 2);
    switch.set(0, 1, Link::default());
    switch.accept(0, &frame(0, address(1), 60, 3), 2 * MS);
    assert_eq!(arrivals(&mut switch), [(2 * MS, 3)]);
}

#[test]
fn no_link_holds_more_frames_than_its_limit() {
    let mut switch = switch(&Link {
        delay: 1000 * MS,
        ..Link::default()
    });
    for _ in 0..MAX_FRAMES + 10 {
        switch.accept(0, &frame(0, address(1), 60, 1), Duration::ZERO);
    }
    assert_eq!(switch.counters(0, 1).dropped, 10);
    assert_eq!(arrivals(&mut switch).len(), MAX_FRAMES);
    switch.accept(0, &frame(0, address(1), 60, 1), 2000 * MS);
    assert_eq!(switch.counters(0, 1).dropped, 10, "there is room again");
}

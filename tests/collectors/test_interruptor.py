"""The switch that ends rollouts early."""

from __future__ import annotations

from threading import Thread

from reap.collectors import Interruptor


def test_it_starts_open_and_can_be_switched_any_number_of_times() -> None:
    interruptor = Interruptor()
    states = [interruptor.collection_stopped()]
    for switch in (interruptor.stop_collection, interruptor.stop_collection, interruptor.start_collection):
        switch()
        states.append(interruptor.collection_stopped())
    assert states == [False, True, True, False]


def test_it_can_be_switched_from_another_thread() -> None:
    interruptor = Interruptor()
    thread = Thread(target=interruptor.stop_collection)
    thread.start()
    thread.join()
    assert interruptor.collection_stopped()

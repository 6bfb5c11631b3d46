#!/usr/bin/env python3
"""A publisher on paho, as a foreign device would have it.

usage: publisher.py HOST PORT CLIENT_ID

Each line of stdin is "NUMBER TOPIC PAYLOAD". It is published with QoS 1 over MQTT 5 as soon as it is read; when its
acknowledgement comes, "NUMBER" is printed. Connecting again and sending again is paho's own business. At the end of
stdin it waits for the last acknowledgements and ends with 0.
"""

import queue
import sys
import threading

import paho.mqtt.client as mqtt

WINDOW = 20


def main():
    host, port, client_id = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    acked = queue.SimpleQueue()
    numbers = {}  # packet id -> number
    changed = threading.Condition()

    client = mqtt.Client(client_id, protocol=mqtt.MQTTv5)
    client.max_inflight_messages_set(WINDOW)
    client.reconnect_delay_set(min_delay=1, max_delay=1)
    # Called with a lock of paho's own held: it may only hand over.
    client.on_publish = lambda client, data, mid: acked.put(mid)
    client.connect(host, port, keepalive=10)
    client.loop_start()

    def tell():
        while True:
            mid = acked.get()
            with changed:
                print(numbers.pop(mid), flush=True)
                changed.notify_all()

    threading.Thread(target=tell, daemon=True).start()
    for line in sys.stdin:
        number, topic, payload = line.rstrip("\n").split(" ", 2)
        with changed:
            info = client.publish(topic, payload, qos=1)
            if info.rc == mqtt.MQTT_ERR_QUEUE_SIZE:
                sys.exit("paho's queue is full")
            numbers[info.mid] = number
    with changed:
        changed.wait_for(lambda: not numbers)
    client.disconnect()
    client.loop_stop()


main()

"""Programs on the stand-ins beside this file; the first argument selects one. Each serves requests, and `request` forgets to
give back one page or block of each. The adapters are switched on by one line, or by the environment."""

import gc
import os
import sys
import threading

import culeak.adapters

LEAKED = 5


def on(name):
    if "CULEAK_ADAPTERS" in os.environ:
        culeak.adapters.from_environment()
    else:
        getattr(culeak.adapters, name).enable()


class Config:
    """vLLM's: all tensors lie in one allocation."""

    class Tensor:
        def __init__(self, offset):
            self.size, self.offset = 64 * 3000, offset

    num_blocks = 64
    kv_cache_tensors = [Tensor(0), Tensor(1500)]


class Request:
    """vLLM's, as far as its KV cache needs it."""

    def __init__(self, request_id, prefix="") -> None:
        self.request_id, self.prefix, self.ended = request_id, prefix, False

    def is_finished(self):
        return self.ended


def vllm():
    on("vllm")
    from vllm.v1.core.kv_cache_manager import KVCacheManager

    manager = KVCacheManager(Config())
    pool = manager.block_pool
    for _ in range(LEAKED):
        blocks = manager.allocate_slots(Request("shared"), 4).blocks[0]
        # A second request shares the prefix, and returns it later.
        pool.touch(blocks[:2])
        pool.free_blocks(reversed(blocks))
        pool.free_blocks(iter([pool.null_block] + blocks[:2]))
        # A hit on blocks that no request holds.
        pool.touch(blocks[:1])
        pool.unpin_blocks(blocks[:1], None)
        request(lambda: pool.get_new_blocks(1))
    # An engine that is gone has no blocks.
    other = KVCacheManager(kv_cache_config=Config())
    other.allocate_slots(Request("gone"), 3)
    # Blocks of one pool that another is asked to free.
    pool.free_blocks(other.allocate_slots(Request("gone"), 2).blocks[0])
    assert len(other.block_pool.free_block_queue) == 60
    del other
    gc.collect()
    return manager


def vllm_pages():
    """Requests that run, wait for a transfer, share a prefix, have ended, and are forgotten."""
    on("vllm")
    from vllm.v1.core.sched.scheduler import Scheduler

    scheduler = Scheduler(Config(), connector=lambda request: request.request_id.startswith("sent"))
    manager = scheduler.kv_cache_manager

    def serve(name, tokens, computed=None, prefix="a prefix"):
        request = Request(name, prefix)
        return request, manager.allocate_slots(request, tokens, computed)

    def end(request):
        request.ended = True
        scheduler._free_request(request)

    # Its blocks are in the prefix cache afterwards.
    end(serve("ended", 4)[0])
    running, shared = serve("running", 5)
    manager.remove_skipped_blocks(running.request_id, 1)
    serve("sharing", 2, type(shared)(shared.blocks[0][1:3]))
    # One block is given back before the transfer, which never ends.
    sent, _ = serve("sent and waiting", 4)
    end(sent)
    arrived, _ = serve("sent and arrived", 3)
    end(arrived)
    scheduler._free_blocks(arrived)
    # Preempted, and runs again.
    again, _ = serve("preempted", 6)
    manager.free(again)
    manager.allocate_slots(again, 1)
    # Its blocks are given back after the step.
    late, _ = serve("late", 2)
    late.ended = True
    blocks = manager.pop_blocks_for_free(late)
    manager.block_pool.free_blocks(blocks[:1])
    # Nobody gives these back.
    request(lambda: manager.block_pool.get_new_blocks(2))
    for number in range(5000):
        end(serve("request {}".format(number), 1, prefix="")[0])
    return scheduler, blocks


def kv_cache(size, page_size):
    class Cache:
        def get_kv_size_bytes(self):
            return (size + page_size) * 100, (size + page_size) * 28

    return Cache()


def sglang(device="cpu"):
    on("sglang")
    import torch
    from sglang.srt.mem_cache.allocator import PagedTokenToKVPoolAllocator, TokenToKVPoolAllocator

    tokens = TokenToKVPoolAllocator(1000, 1, device, kv_cache(1000, 1))
    pages = PagedTokenToKVPoolAllocator(1600, 16, device, kv_cache(1600, 16))
    for _ in range(LEAKED):
        one, two = tokens.alloc(7), pages.alloc_extend(20, 70)
        tokens.free(one[:3])
        tokens.free_group_begin()
        tokens.free(one[3:])
        torch.arrive()
        tokens.free_group_end()
        pages.free(two)
        torch.arrive()
        request(lambda: tokens.alloc(1))
        request(lambda: pages.alloc(16))
    # A draft that is rejected.
    state = tokens.backup_state()
    tokens.alloc(9)
    tokens.restore_state(state)
    assert tokens.alloc(5000) is None
    # A pool that starts again.
    other = PagedTokenToKVPoolAllocator(1600, 16, device, kv_cache(1600, 16))
    other.alloc(160)
    other.clear()
    return tokens, pages, other


def sglang_pages():
    """Requests that run, are in the cache, were evicted, and are gone without giving back their pages."""
    on("sglang")
    from sglang.srt.disaggregation.prefill import SchedulerDisaggregationPrefillMixin
    from sglang.srt.managers.schedule_batch import Req, ScheduleBatch
    from sglang.srt.mem_cache.allocator import TokenToKVPoolAllocator
    from sglang.srt.mem_cache.radix_cache import RadixCache

    tokens = TokenToKVPoolAllocator(1000, 1, "cpu", kv_cache(1000, 1))
    cache = RadixCache(tokens, 1)

    def prefill(rid, length):
        req = Req(rid, [0] * length)
        req.kv = tokens.alloc(length)
        cache.cache_unfinished_req(req)
        return req

    for length in (100, 50):
        cache.cache_finished_req(prefill("cached {}".format(length), length))
    cache.evict(1)
    cache.cache_finished_req(prefill("aborted", 30), is_insert=False)
    running = prefill("running", 41)
    batch = ScheduleBatch([running], cache)
    for _ in range(8):
        batch.prepare_for_decode()
    lost = prefill("lost", 7)
    assert lost.kv is not None
    del lost
    gc.collect()
    # Another request of this name, and one whose name is used again while it runs.
    again = [prefill("lost", 5), prefill("twice", 3), prefill("twice", 2)]
    cache.cache_finished_req(again[1])
    # Two are sent to a server that decodes; of one, that has ended.
    scheduler = SchedulerDisaggregationPrefillMixin(cache)
    scheduler.disagg_prefill_inflight_queue += [prefill("sent", 11), prefill("received", 4)]
    scheduler.process_disagg_prefill_inflight_queue()
    scheduler.process_disagg_prefill_inflight_queue("received")
    return batch, again, scheduler


def sglang_cuda():
    """Copies arrive late, and a thread of the adapter waits for them."""
    import torch

    # Copies that are too large for the adapter's buffer, that do not fit any more, and that begin at its start again.
    culeak.adapters.sglang._ROOM = 32
    kept = sglang("cuda")
    copies = kept[0]._culeak
    for _ in range(10):
        kept[0].free(kept[0].alloc(5))
        torch.arrive()
        while copies.moving:
            threading.Event().wait(0.001)
    assert copies.end > 2 * 32, copies.end
    late = [kept[0].alloc(4), kept[1].alloc(64)]
    kept[0].free(late[0])
    for _ in range(9):
        kept[0].free(kept[0].alloc(5))
    kept[1].free(late[1])
    live = kept[0]._culeak.domain._live
    assert len(live) == 2 * LEAKED + 8 + 45, "freed before its copy has arrived"
    torch.arrive()
    while len(live) > 2 * LEAKED:
        threading.Event().wait(0.01)
    return kept


def rmm():
    on("rmm")
    import rmm

    kept = []
    plain = rmm.DeviceBuffer(100)
    rmm.reinitialize(pool_allocator=True)
    pool = rmm.mr.get_current_device_resource()
    assert pool.pool_size() == 1 << 20, "the program has its own resource"
    rmm.mr.set_current_device_resource(rmm.mr.LimitingResourceAdaptor(pool, 1 << 20))
    for _ in range(LEAKED):
        work = [rmm.DeviceBuffer(700) for _ in range(3)]
        request(lambda: kept.append(rmm.DeviceBuffer(500)))
        del work
    assert type(rmm.mr.get_current_device_resource()) is rmm.mr.LimitingResourceAdaptor
    assert rmm.mr.get_per_device_resource(0).upstream_mr is pool
    del plain
    return kept


def cupy():
    import cupy as cp

    early = cp.empty(10)
    on("cupy")
    kept = []
    pool = cp.cuda.get_allocator()
    assert pool == cp._pool.malloc, "the program has its own allocator"
    for _ in range(LEAKED):
        arrays = [cp.empty(700) for _ in range(3)]
        # Dropped by another thread, which CuPy's hooks of this thread would not see.
        thread = threading.Thread(target=arrays.clear)
        thread.start()
        thread.join()
        cp.empty(800).data.mem.free()
        request(lambda: kept.append(cp.empty(500)))
    with cp.cuda.using_allocator(cp.cuda.memory._malloc):
        kept.append(cp.empty(12345))
    cp.cuda.set_allocator(None)
    kept.append(cp.empty(23456))
    cp.cuda.set_allocator(pool)
    request(lambda: kept.append(cp.empty(501)))
    del early
    return kept


def onnxruntime():
    on("onnxruntime")
    import onnxruntime as ort

    kept = []
    make = ort.OrtValue.ortvalue_from_shape_and_type
    for _ in range(LEAKED):
        host, device = make([300]), make([400], device_type="cuda")
        # A second object for the same value.
        again = ort.OrtValue(device._ortvalue)
        del device, again, host
        request(lambda: kept.append(make([500], device_type="cuda")))
    return kept


def torch():
    on("torch")
    import torch as stand_in

    allocator = stand_in.cuda.memory.CUDAPluggableAllocator(os.environ["PLUGGABLE"], "my_malloc", "my_free")._allocator
    with stand_in.cuda.use_mem_pool(stand_in.cuda.MemPool()):
        for _ in range(LEAKED):
            work = allocator.alloc(700, 0, None)
            request(lambda: allocator.alloc(500, 0, None))
            allocator.free(work, 700, 0, None)
    assert not allocator.alloc(1 << 60, 0, None), "refused"
    allocator.free(None, 0, 0, None)
    return allocator


def tensorflow():
    import tensorflow as early

    # From before the adapter: its free is of a block that nothing is known of.
    before = early.Device(0).zeros(800)
    on("tensorflow")
    import tensorflow as tf

    del before
    kept = []
    devices = [tf.Device(0), tf.Device(1), tf.Device(-1)]
    for _ in range(LEAKED):
        for device in devices:
            work = [device.zeros(700) for _ in range(3)]
            thread = threading.Thread(target=work.clear)
            thread.start()
            thread.join()
            request(lambda: kept.append(device.zeros(1000)))  # noqa: B023
    assert not devices[0].zeros(1 << 30).address, "refused"
    return kept


def breaks():
    """The framework is not what the adapters expect: they stop, and it goes on."""
    on("vllm")
    from vllm.v1.core.kv_cache_manager import KVCacheManager

    manager = KVCacheManager(Config())
    kept = manager.allocate_slots(Request("first"), 3).blocks[0]

    class Odd:
        ref_cnt, is_null, pool, block_hash = 1, False, manager.block_pool, 0
        block_id = property(lambda self: 1 / 0)

    odd = Odd()
    manager.block_pool.free_blocks([odd])
    more = manager.allocate_slots(Request("second"), 2).blocks[0]
    manager.block_pool.free_blocks([Odd()])
    print("served", len(kept + more), odd.ref_cnt)
    return manager


def changed():
    """A framework without one of the functions: nothing is replaced."""
    on("vllm")
    import vllm.v1.core.block_pool as block_pool

    del block_pool.BlockPool.free_blocks
    before = dict(vars(block_pool.BlockPool))
    from vllm.v1.core.kv_cache_manager import KVCacheManager

    made = KVCacheManager.__init__
    assert vars(block_pool.BlockPool) == before and not hasattr(made, "__wrapped__")
    print("served", len(KVCacheManager(Config()).allocate_slots(Request("one"), 3).blocks[0]))


def unknown():
    try:
        culeak.adapters.enable("vlm")
    except ValueError as error:
        print(error)


def request(serve):
    serve()


kept = globals()[sys.argv[1]]()
if sys.argv[2:] == ["count"]:
    replaced = [name for name in sys.modules if name.startswith("culeak.adapters")]
    from culeak.adapters import blocks

    print(blocks.replaced(), len(replaced))

"""Page numbers that are free, in a tensor on the device; page 0 is never handed out."""

import torch


class TokenToKVPoolAllocator:
    """Pages of one token."""

    def __init__(self, size, page_size, device, kvcache):
        self.size, self.page_size, self.device = size, page_size, device
        self._kvcache = kvcache
        self.clear()

    def clear(self):
        self.free_pages = torch.tensor(range(1, self.size // self.page_size + 1), self.device == "cuda")
        self.free_group = None

    def get_kvcache(self):
        return self._kvcache

    def available_size(self):
        return len(self.free_pages) * self.page_size

    def take(self, count):
        taken, self.free_pages = self.free_pages[:count], self.free_pages[count:]
        return taken

    def alloc(self, need_size):
        return self.take(need_size) if need_size <= len(self.free_pages) else None

    def free(self, free_index):
        if self.free_group is None:
            self.free_pages = torch.cat((self.free_pages, free_index))
        else:
            self.free_group.append(free_index)

    def free_group_begin(self):
        self.free_group = []

    def free_group_end(self):
        pending, self.free_group = self.free_group, None
        if pending:
            self.free(torch.cat(pending))

    def backup_state(self):
        return self.free_pages

    def restore_state(self, state):
        self.free_pages = state


class PagedTokenToKVPoolAllocator(TokenToKVPoolAllocator):
    """Pages of several tokens: a request takes new pages only where its last one is full."""

    def alloc(self, need_size):
        return self.tokens(super().alloc(need_size // self.page_size), need_size)

    def alloc_extend(self, prefix_lens, seq_lens):
        """For one request."""
        old, new = -(-prefix_lens // self.page_size), -(-seq_lens // self.page_size)
        return self.tokens(self.take(new - old), seq_lens - prefix_lens)

    def tokens(self, pages, count):
        numbers = [page * self.page_size + nth for page in pages.tolist() for nth in range(self.page_size)]
        return torch.tensor(numbers[:count], self.device == "cuda")

    def free(self, free_index):
        if self.free_group is None:
            self._release_page_ids(torch.tensor(sorted(set((free_index // self.page_size).tolist())), self.device == "cuda"))
        else:
            self.free_group.append(free_index)

    def _release_page_ids(self, *page_ids):
        self.free_pages = torch.cat((*page_ids, self.free_pages))

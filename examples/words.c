/*
 * Counts the words of its standard input and prints the commonest, as a C program of ordinary size for
 * compile_c.py to compile: a hash table, a binary heap, a treap, a matcher for simple patterns and an arena.
 *
 *   words [-n COUNT] [-p PATTERN] < text
 */
#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- arena: memory that is given back all at once ---- */

struct chunk {
	struct chunk *next;
	size_t used;
	size_t size;
	char bytes[];
};

struct arena {
	struct chunk *first;
	size_t chunk_bytes;
	size_t total_bytes;
};

static void die(const char *what)
{
	fprintf(stderr, "words: %s: %s\n", what, strerror(errno));
	exit(2);
}

static void *arena_take(struct arena *arena, size_t nr_bytes)
{
	nr_bytes = (nr_bytes + 15) & ~(size_t)15;
	struct chunk *chunk = arena->first;
	if (!chunk || chunk->size - chunk->used < nr_bytes) {
		size_t size = nr_bytes > arena->chunk_bytes ? nr_bytes : arena->chunk_bytes;
		chunk = malloc(sizeof(*chunk) + size);
		if (!chunk)
			die("out of memory");
		chunk->next = arena->first;
		chunk->used = 0;
		chunk->size = size;
		arena->first = chunk;
		arena->total_bytes += size;
	}
	void *taken = chunk->bytes + chunk->used;
	chunk->used += nr_bytes;
	return taken;
}

static void arena_free(struct arena *arena)
{
	while (arena->first) {
		struct chunk *next = arena->first->next;
		free(arena->first);
		arena->first = next;
	}
	arena->total_bytes = 0;
}

/* ---- hash table: open addressing, powers of two ---- */

struct entry {
	const char *word;
	uint32_t length;
	uint32_t hash;
	uint64_t count;
};

struct table {
	struct entry *slots;
	size_t nr_slots;
	size_t nr_used;
	struct arena *arena;
};

static uint32_t hash_of(const char *word, size_t length)
{
	uint32_t hash = 2166136261u;
	for (size_t i = 0; i < length; i++) {
		hash ^= (unsigned char)word[i];
		hash *= 16777619u;
	}
	return hash ? hash : 1;
}

static struct entry *table_slot(const struct table *table, const char *word, size_t length, uint32_t hash)
{
	size_t mask = table->nr_slots - 1;
	for (size_t i = hash & mask;; i = (i + 1) & mask) {
		struct entry *slot = &table->slots[i];
		if (!slot->word)
			return slot;
		if (slot->hash == hash && slot->length == length && memcmp(slot->word, word, length) == 0)
			return slot;
	}
}

static void table_grow(struct table *table)
{
	struct entry *old = table->slots;
	size_t nr_old = table->nr_slots;
	table->nr_slots = nr_old ? 2 * nr_old : 1024;
	table->slots = calloc(table->nr_slots, sizeof(*table->slots));
	if (!table->slots)
		die("out of memory");
	for (size_t i = 0; i < nr_old; i++) {
		if (old[i].word)
			*table_slot(table, old[i].word, old[i].length, old[i].hash) = old[i];
	}
	free(old);
}

static void table_count(struct table *table, const char *word, size_t length)
{
	if (4 * (table->nr_used + 1) > 3 * table->nr_slots)
		table_grow(table);
	uint32_t hash = hash_of(word, length);
	struct entry *slot = table_slot(table, word, length, hash);
	if (!slot->word) {
		char *copy = arena_take(table->arena, length + 1);
		memcpy(copy, word, length);
		copy[length] = '\0';
		*slot = (struct entry){.word = copy, .length = (uint32_t)length, .hash = hash};
		table->nr_used++;
	}
	slot->count++;
}

/* ---- heap: the n commonest, the least of them on top ---- */

struct heap {
	const struct entry **items;
	size_t nr_items;
	size_t limit;
};

static bool rarer(const struct entry *a, const struct entry *b)
{
	if (a->count != b->count)
		return a->count < b->count;
	return strcmp(a->word, b->word) > 0;
}

static void heap_sink(struct heap *heap, size_t at)
{
	for (;;) {
		size_t least = at, left = 2 * at + 1, right = left + 1;
		if (left < heap->nr_items && rarer(heap->items[left], heap->items[least]))
			least = left;
		if (right < heap->nr_items && rarer(heap->items[right], heap->items[least]))
			least = right;
		if (least == at)
			return;
		const struct entry *item = heap->items[at];
		heap->items[at] = heap->items[least];
		heap->items[least] = item;
		at = least;
	}
}

static void heap_offer(struct heap *heap, const struct entry *entry)
{
	if (heap->nr_items < heap->limit) {
		size_t at = heap->nr_items++;
		heap->items[at] = entry;
		while (at && rarer(heap->items[at], heap->items[(at - 1) / 2])) {
			const struct entry *item = heap->items[at];
			heap->items[at] = heap->items[(at - 1) / 2];
			heap->items[(at - 1) / 2] = item;
			at = (at - 1) / 2;
		}
	} else if (heap->limit && rarer(heap->items[0], entry)) {
		heap->items[0] = entry;
		heap_sink(heap, 0);
	}
}

/* ---- treap: words in order, for a listing by name ---- */

struct node {
	const struct entry *entry;
	struct node *left, *right;
	uint32_t priority;
};

static struct node *rotate_right(struct node *node)
{
	struct node *left = node->left;
	node->left = left->right;
	left->right = node;
	return left;
}

static struct node *rotate_left(struct node *node)
{
	struct node *right = node->right;
	node->right = right->left;
	right->left = node;
	return right;
}

static struct node *treap_insert(struct arena *arena, struct node *node, const struct entry *entry)
{
	if (!node) {
		node = arena_take(arena, sizeof(*node));
		*node = (struct node){.entry = entry, .priority = entry->hash * 2654435761u};
		return node;
	}
	if (strcmp(entry->word, node->entry->word) < 0) {
		node->left = treap_insert(arena, node->left, entry);
		return node->left->priority > node->priority ? rotate_right(node) : node;
	}
	node->right = treap_insert(arena, node->right, entry);
	return node->right->priority > node->priority ? rotate_left(node) : node;
}

static size_t treap_print(const struct node *node, size_t limit)
{
	if (!node || !limit)
		return 0;
	size_t printed = treap_print(node->left, limit);
	if (printed < limit) {
		printf("  %-24s %" PRIu64 "\n", node->entry->word, node->entry->count);
		printed++;
	}
	return printed + treap_print(node->right, limit - printed);
}

/* ---- matcher: `.` any letter, `x*` any number of x, `^` and `$` the ends ---- */

static bool match_here(const char *pattern, const char *text);

static bool match_star(char letter, const char *pattern, const char *text)
{
	do {
		if (match_here(pattern, text))
			return true;
	} while (*text && (*text++ == letter || letter == '.'));
	return false;
}

static bool match_here(const char *pattern, const char *text)
{
	if (pattern[0] == '\0')
		return true;
	if (pattern[1] == '*')
		return match_star(pattern[0], pattern + 2, text);
	if (pattern[0] == '$' && pattern[1] == '\0')
		return *text == '\0';
	if (*text && (pattern[0] == '.' || pattern[0] == *text))
		return match_here(pattern + 1, text + 1);
	return false;
}

static bool matches(const char *pattern, const char *text)
{
	if (pattern[0] == '^')
		return match_here(pattern + 1, text);
	do {
		if (match_here(pattern, text))
			return true;
	} while (*text++);
	return false;
}

/* ---- reading ---- */

static uint64_t read_words(FILE *in, struct table *table)
{
	char word[256];
	size_t length = 0;
	uint64_t nr_words = 0;
	for (int letter; (letter = getc(in)) != EOF;) {
		if (isalpha(letter) || (letter == '\'' && length)) {
			if (length + 1 < sizeof(word))
				word[length++] = (char)tolower(letter);
		} else if (length) {
			table_count(table, word, length);
			nr_words++;
			length = 0;
		}
	}
	if (length) {
		table_count(table, word, length);
		nr_words++;
	}
	if (ferror(in))
		die("cannot read");
	return nr_words;
}

static size_t number(const char *text)
{
	char *end;
	errno = 0;
	unsigned long value = strtoul(text, &end, 10);
	if (errno || *end || end == text) {
		fprintf(stderr, "words: %s is not a number\n", text);
		exit(2);
	}
	return value;
}

int main(int argc, char **argv)
{
	struct arena arena = {.chunk_bytes = 64 << 10};
	struct table table = {.arena = &arena};
	struct heap heap = {.limit = 10};
	const char *pattern = "";

	for (int i = 1; i < argc; i++) {
		if (strcmp(argv[i], "-n") == 0 && i + 1 < argc)
			heap.limit = number(argv[++i]);
		else if (strcmp(argv[i], "-p") == 0 && i + 1 < argc)
			pattern = argv[++i];
		else {
			fprintf(stderr, "usage: words [-n COUNT] [-p PATTERN] < text\n");
			return 2;
		}
	}
	table_grow(&table);
	uint64_t nr_words = read_words(stdin, &table);

	heap.items = calloc(heap.limit ? heap.limit : 1, sizeof(*heap.items));
	if (!heap.items)
		die("out of memory");
	struct node *root = NULL;
	for (size_t i = 0; i < table.nr_slots; i++) {
		const struct entry *entry = &table.slots[i];
		if (entry->word && matches(pattern, entry->word)) {
			heap_offer(&heap, entry);
			root = treap_insert(&arena, root, entry);
		}
	}

	printf("%" PRIu64 " words, %zu different, %zu bytes of arena\n", nr_words, table.nr_used, arena.total_bytes);
	for (size_t left = heap.nr_items; left; left--) {
		const struct entry *entry = heap.items[0];
		printf("%8" PRIu64 " %s\n", entry->count, entry->word);
		heap.items[0] = heap.items[--heap.nr_items];
		heap_sink(&heap, 0);
	}
	puts("first by name:");
	treap_print(root, 10);
	free(heap.items);
	free(table.slots);
	arena_free(&arena);
	return 0;
}

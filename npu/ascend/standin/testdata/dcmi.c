// A stand-in for libdcmi.so, for tests: two cards of two chips, whose health a test sets.
#include <stdint.h>
#define API __attribute__((visibility("default")))

enum { CARDS = 2, CHIPS = 2 };
static int begun;
static uint32_t health[CARDS * CHIPS];
static int network[CARDS * CHIPS];

API void standin_health(int device, uint32_t h, int net) { health[device] = h; network[device] = net; }

static int at(int card, int chip) { return !begun || card < 0 || card >= CARDS || chip < 0 || chip >= CHIPS ? -1 : card * CHIPS + chip; }
API int dcmi_init(void) { begun = 1; return 0; }
API int dcmi_get_card_list(int *n, int *list, int len) { if (!begun || len < CARDS) return -8002; *n = CARDS; for (int i = 0; i < CARDS; i++) list[i] = i; return 0; }
API int dcmi_get_device_num_in_card(int card, int *n) { if (at(card, 0) < 0) return -8002; *n = CHIPS; return 0; }
API int dcmi_get_device_logic_id(int *id, int card, int chip) { if (at(card, chip) < 0) return -8002; *id = at(card, chip); return 0; }
API int dcmi_get_device_health(int card, int chip, uint32_t *h) { if (at(card, chip) < 0) return -8002; *h = health[at(card, chip)]; return 0; }
API int dcmi_get_device_network_health(int card, int chip, int *h) { if (at(card, chip) < 0) return -8002; *h = network[at(card, chip)]; return 0; }
API int dcmi_get_topo_info_by_device_id(int c1, int d1, int c2, int d2, int *way) {
	if (at(c1, d1) < 0 || at(c2, d2) < 0) return -8002;
	*way = at(c1, d1) == at(c2, d2) ? 0 : c1 == c2 ? 6 : 3; // itself, SIO, HCCS
	return 0;
}
